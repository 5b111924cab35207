"""`td.connect` over two hosts: network namespaces on this machine, skipped where there are none.

Holds `tiledask.distributed.connecting.connect`.
"""

import json

import pytest
from twins.by_hand import two_hosts

pytestmark = pytest.mark.cluster

PROGRAM = """
import json, os, sys, time
import numpy as np
import tiledask as td
from tiledask.errors import ConfigError

said = {}
cluster = td.connect(sys.argv[1], workers=2, timeout=240)
said["hosts"] = [cluster.workers()[slot]["host"] for slot in range(2)]
rng = np.random.default_rng(0)
a, b = (rng.standard_normal(shape, np.float32) for shape in ((301, 203), (203, 251)))
A, B = (td.distribute(x, td.Mesh(cluster, (1, 2)), [td.Shard(0), td.Shard(1)]) for x in (a, b))

def product():
    C = A @ B
    far = float(np.abs(td.to_numpy(C) - a @ b).max())
    return [C.traffic.predicted == C.traffic.measured, C.traffic.measured.total > 0, far < 1e-3]

said["product"] = product()
text = td.load_text("tales")
model = td.GPT(text.vocabulary, hidden=16, layers=2, heads=4, sequence=8)
for shape in ((1, 2, 1), (1, 1, 2)):
    there = td.train(model, text, td.Mesh(cluster, shape), steps=2, batch=4)
    here = td.train(model, text, shape, steps=2, batch=4)
    said[f"train {shape}"] = [there.losses.tolist(), here.losses.tolist()]

folder = os.environ["TMPDIR"]
np.save(f"{folder}/a.npy", np.ones((6, 6)))
stored, out, run = td.open_array(f"{folder}/a.npy"), f"{folder}/c.npy", f"{folder}/run"
for name, what in (
    ("files", lambda: td.matmul(stored, stored, out=out, cluster=cluster)),
    ("checkpoint", lambda: td.train(
        model, text, td.Mesh(cluster, (1, 2, 1)), steps=1, batch=2, folder=run)),
):
    try:
        said[name] = f"nothing raised: {what()}"
    except ConfigError as error:
        said[name] = str(error)
said["left"] = sorted(os.listdir(run))

def program(rank):
    made = [rank.group().all_reduce(np.arange(n) / (3 + rank.index)) for n in (3, 300_000)]
    return [x.tobytes().hex()[-64:] for x in made]

done = td.run_ranks(program, td.Mesh(cluster, (2,)))
said["ranks"] = [*done.results, done.traffic.total > 0]

def die(dask_worker):
    os._exit(1)

at = cluster.workers()[1]["address"]
cluster.client.run(die, workers=[at], on_error="ignore")
deadline = time.monotonic() + 200
while cluster.workers().get(1, {}).get("address", at) == at and time.monotonic() < deadline:
    time.sleep(0.05)
said["again"] = [cluster.workers()[1]["address"] != at, cluster.workers()[1]["host"], *product()]
cluster.close()
print(json.dumps(said))
"""


def test_workers_on_two_hosts_do_what_those_of_one_do_and_are_told_apart(tmp_path):
    """What a client on host A saw of a worker on each host, each under a nanny."""
    with two_hosts(tmp_path) as hosts:
        hosts.on("B", "--nanny")
        hosts.on("A", "--nanny")
        said = json.loads(hosts.client(PROGRAM).splitlines()[-1])
    assert said["hosts"] == ["10.77.0.1", "10.77.0.2"]
    assert said["product"] == [True] * 3
    for shape in ("(1, 2, 1)", "(1, 1, 2)"):
        there, here = said[f"train {shape}"]
        assert there == here
    one, other, moved = said["ranks"]
    assert one == other
    assert moved
    assert "cannot be read on" in said["files"]
    assert "on every worker's host; take a folder on a file system that all" in said["checkpoint"]
    assert said["left"] == []
    # of the worker on the other host, which was killed: it came back to its slot
    assert said["again"] == [True, "10.77.0.2", True, True, True]
