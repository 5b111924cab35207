"""`td.connect` over two hosts: network namespaces on this machine, skipped where there are none.

Holds `tiledask.distributed.connecting.shared`.
"""

import json

import pytest
from twins.by_hand import two_hosts

pytestmark = pytest.mark.cluster

PROGRAM = """
import json, os, subprocess, sys, threading, time
import numpy as np
import tiledask as td
from distributed import Client
from tiledask.errors import ConfigError

said = {}
cluster = td.connect(sys.argv[1], workers=2, timeout=240)
said["hosts"] = [cluster.workers()[slot]["host"] for slot in range(2)]
said["near"] = sorted(cluster.near())
rng = np.random.default_rng(0)
a, b = (rng.standard_normal(shape, np.float32) for shape in ((301, 203), (203, 251)))
for shape in ((2,), (1, 2)):
    mesh = td.Mesh(cluster, shape)
    placed = [td.Shard(i) for i in range(len(shape))]
    A, B = (td.distribute(x, mesh, placed) for x in (a, b))
    C = A @ B
    far = np.abs(td.to_numpy(C) - a @ b).max()
    moved = C.traffic.measured.total
    said[str(shape)] = [moved, C.traffic.predicted == C.traffic.measured, float(far)]
said["moved"] = td.explain(A, B).moved

x = np.arange(32.0).reshape(8, 4)
schedule = td.schedule("1f1b", 2, 4)
for engine in ("tasks", "loop"):
    run = td.run_schedule(
        schedule, [td.stages.FeedForward((i,), 4, 8) for i in range(2)], x, cluster,
        target=x, engine=engine,
    )
    said[engine] = [run.traffic.predicted == run.traffic.measured, run.loss]
text = td.load_text("tales")
model = td.GPT(text.vocabulary, hidden=16, layers=2, heads=4, sequence=8)
for shape in ((1, 2, 1), (1, 1, 2)):
    there = td.train(model, text, td.Mesh(cluster, shape), steps=2, batch=4)
    here = td.train(model, text, shape, steps=2, batch=4)
    said[f"train {shape}"] = [there.losses.tolist(), here.losses.tolist()]

folder = os.environ["TMPDIR"]
np.save(f"{folder}/a.npy", np.ones((6, 6)))
for name, what in (
    ("files", lambda: td.matmul(
        td.open_array(f"{folder}/a.npy"), td.open_array(f"{folder}/a.npy"),
        out=f"{folder}/c.npy", cluster=cluster,
    )),
    ("checkpoint", lambda: td.train(
        model, text, td.Mesh(cluster, (1, 2, 1)), steps=1, batch=2, folder=f"{folder}/run",
    )),
):
    try:
        said[name] = f"nothing raised: {what()}"
    except ConfigError as error:
        said[name] = str(error)
said["left"] = sorted(os.listdir(folder + "/run"))

def program(rank):
    g = rank.group()
    made = [g.all_reduce(np.arange(n) / (3 + rank.index)) for n in (3, 300_000)]
    return [x.tobytes().hex()[-64:] for x in made]

line = td.Mesh(cluster, (2,))
for way in (None, "posts"):
    done = td.run_ranks(program, line, transport=way)
    said[f"ranks {way}"] = [*done.results, done.traffic.total]

def die(dask_worker):
    os._exit(1)

at = cluster.address(1)
cluster.client.run(die, workers=[at], on_error="ignore")
deadline = time.monotonic() + 200
while cluster.workers().get(1, {}).get("address", at) == at and time.monotonic() < deadline:
    time.sleep(0.05)
C = A @ B
said["again"] = [cluster.address(1) != at, cluster.workers()[1]["host"]]
said["again"] += [C.traffic.predicted == C.traffic.measured]
said["again"] += [float(np.abs(td.to_numpy(C) - a @ b).max())]
cluster.close()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """A worker on each host, each under a nanny."""
    with two_hosts(tmp_path_factory.mktemp("hosts")) as started:
        started.on("B", "--nanny")
        started.on("A", "--nanny")
        yield started


@pytest.fixture(scope="module")
def said(hosts):
    """What a client on host A saw."""
    return json.loads(hosts.client(PROGRAM).splitlines()[-1])


def test_slots_are_numbered_by_host_and_only_one_is_near(said):
    assert said["hosts"] == ["10.77.0.1", "10.77.0.2"]
    assert said["near"] == [0]


@pytest.mark.parametrize("mesh", ["(2,)", "(1, 2)"])
def test_a_product_over_two_hosts_moves_what_was_predicted(said, mesh):
    moved, equal, far = said[mesh]
    assert equal
    assert moved > 0
    assert far < 1e-3
    assert said["moved"] == "Blocks go as messages: workers are on hosts of their own."


def test_a_schedule_over_two_hosts_moves_what_was_predicted(said):
    (equal, loss), (looped, same) = said["tasks"], said["loop"]
    assert equal
    assert looped
    assert loss == same > 0


@pytest.mark.parametrize("shape", ["(1, 2, 1)", "(1, 1, 2)"])
def test_a_training_over_two_hosts_has_the_losses_of_one(said, shape):
    there, here = said[f"train {shape}"]
    assert there == here


def test_files_that_a_host_does_not_see_are_refused(said):
    assert "a.npy" in said["files"] or "temporary" in said["files"]
    for name in ("files", "checkpoint"):
        assert "not what the workers of slots [1] find there (tcp://10.77.0.2:" in said[name]
        assert "file system that all of them share" in said[name]
    assert said["left"] == []


def test_ranks_of_two_hosts_send_by_dask(said):
    default, posts = (said[f"ranks {way}"] for way in (None, "posts"))
    assert default == posts
    assert posts[2] > 0


def test_a_killed_worker_on_the_other_host_comes_back_to_its_slot(said):
    moved, host, equal, far = said["again"]
    assert (moved, host, equal) == (True, "10.77.0.2", True)
    assert far < 1e-3
