"""What the README shows of clusters runs over `td.connect` on workers of several hosts.

The blocks as they stand, where whatever makes a cluster connects to one, and what would run on this
machine's threads (a program, a training) runs on the hosts: bytes predicted are those counted.
"""

import json

import pytest
from oracles.fences import PYTHON, blocks
from oracles.finished import ROOT
from twins.by_hand import two_hosts

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

README = (ROOT / "README.md").read_text("utf-8")
WORKERS = 8
"""As many as the largest training there has ranks."""
CLIENT = """
import contextlib, io, json, math, sys
import distributed
import tiledask as td
from tiledask.distributed.arrays.array import operators

address, workers, source = sys.argv[1], int(sys.argv[2]), sys.argv[3]
ran, hosts = [], set()

def connect(workers=workers, **_):
    found = td.connect(address, workers=workers, timeout=240)
    hosts.update(facts["host"] for facts in found._workers().values())
    return found

def product(a, b, multiply=td.matmul):
    c = multiply(a, b)
    ran.append(("product", c.traffic.predicted.total, c.traffic.measured.total))
    return c

def program(program, stages, batch, run=td.run_program, **options):
    done = run(program, stages, batch, td.Mesh(connect(), (program.ranks,)), **options)
    ran.append(("program", done.traffic.predicted.total, done.traffic.measured.total))
    return done

def train(model, text, shape, run=td.train, **options):
    if math.prod(shape) == 1:
        return run(model, text, shape, **options)
    done = run(model, text, td.Mesh(connect(), shape), **options)
    steps = done.records.totals("step")
    for number in range(len(done.losses)):
        ran.append(("training", done.program.traffic.total, steps[number].sent))
    return done

td.start_cluster, td.run_program, td.train = connect, program, train
operators["@"] = product
distributed.LocalCluster = lambda **_: contextlib.nullcontext(address)
said = io.StringIO()
with contextlib.redirect_stdout(said):
    exec(compile(source, "README", "exec"), there := {"__name__": "__main__"})
far = float(abs(there["split"].losses - there["alone"].losses).max())
print(json.dumps({"ran": ran, "hosts": sorted(hosts), "far": far, "said": said.getvalue()}))
"""


@pytest.mark.parametrize("count", [2, 4])
def test_the_readme_runs_on_hosts_and_moves_what_was_predicted(tmp_path, count):
    with two_hosts(tmp_path, count) as hosts:
        for host in hosts.addresses:
            hosts.on(host, "--nanny", "--nworkers", str(WORKERS // count))
        source = "\n".join(blocks(README, PYTHON))
        said = hosts.client(CLIENT, str(WORKERS), source, timeout=240)
    told = json.loads(said.splitlines()[-1])
    assert told["hosts"] == sorted(hosts.addresses.values())
    assert [kind for kind, *_ in told["ran"]] == ["product"] * 2 + ["program"] + ["training"] * 3
    for kind, predicted, counted in told["ran"]:
        assert predicted == counted > 0, kind
    assert told["far"] < 1e-4
    assert "True" in told["said"]
