"""Interrupting a notebook stops what waits and nothing else, in a real kernel."""

import time
from uuid import uuid4

import pytest
from jupyter_client.manager import start_new_kernel

pytestmark = pytest.mark.cluster

START = """
import os, tempfile, time, pathlib
import dask.array as da
import numpy as np
import tiledask as td

os.environ["TILEDASK_DASHBOARD_PORT"] = "none"
cluster = td.start_cluster(workers=2, device="cpu", quiet=True)
pids = cluster.run(os.getpid)
mesh, folder = td.Mesh(cluster, (2,)), pathlib.Path(tempfile.mkdtemp())
np.save(folder / "a.npy", np.ones((4000, 4000)))
stored = td.open_array(folder / "a.npy")
A = td.distribute(np.ones((4000, 4000)), mesh, [td.Shard(0)])
small = td.distribute(np.ones((400, 400)), mesh, [td.Shard(0)])
td.matmul(small, small)
del small
text = td.load_text("tales")
x, ones = np.ones((16, 8)), da.ones((6000, 6000), chunks=500)

class Slow:
    vocabulary = text.vocabulary
    def batch(self, *which):
        time.sleep(0.02)
        return text.batch(*which)

def averaged(rank):
    while True:
        rank.group().all_reduce(np.ones(3))

def scheduled(engine):
    stages = [td.stages.FeedForward((i,), 8, 8) for i in range(2)]
    td.run_schedule(td.schedule("1f1b", 2, 16), stages, x, cluster, target=x, engine=engine,
                    forward=0.4, backward=0.4)

def held(dask_scheduler):
    return (sorted(map(str, dask_scheduler.tasks)),
            sum(each.nbytes for each in dask_scheduler.workers.values()) // 1000)  # of None: 16 B

def running(dask_worker):
    return len(dask_worker.state.executing) + len(dask_worker.state.long_running)

time.sleep(0.5)
before = cluster.client.run_on_scheduler(held)
"""
CALLS = {
    "wait": "cluster.wait([cluster.submit(i % 2, time.sleep, 0.25) for i in range(400)], 'naps',"
    " cancel=True)",
    "matmul": "td.matmul(A, A, panel=50)",
    "files": "td.matmul(stored, stored, out=folder / 'c.npy', cluster=cluster, "
    "memory_limit='50MB')",
    "lazy": "td.matmul(ones, ones).sum().compute()",
    "loop": "scheduled('loop')",
    "train": "td.train(td.GPT(text.vocabulary, hidden=16, layers=2, heads=4, sequence=8), Slow(), "
    "td.Mesh(cluster, (1, 2, 1)), steps=2000, batch=4)",
    "run_ranks": "td.run_ranks(averaged, mesh)",
    "run": "cluster.run(lambda: __import__('asyncio').sleep(3))",
}
AFTER = """
begun = time.monotonic()
while (cluster.client.run_on_scheduler(held) != before or any(cluster.run(running))) and (
        time.monotonic() < begun + 200):  # 0.3 s on a quiet machine
    time.sleep(0.02)
tasks, nbytes = cluster.client.run_on_scheduler(held)
print([each for each in tasks if each not in before[0]], nbytes - before[1],
      cluster.run(running), cluster.run(os.getpid) == pids,
      cluster.gather([cluster.submit(i, abs, -i) for i in range(2)], "after", timeout=240))
"""


@pytest.fixture(scope="module")
def kernel():
    manager, client = start_new_kernel(startup_timeout=240)
    assert run(client, START) == ("", None)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(client, code, timeout=240):
    """(what the cell printed, the name of its error if any)."""
    printed = []

    def hook(message):
        if message["msg_type"] == "stream":
            printed.append(message["content"]["text"])

    reply = client.execute_interactive(code, timeout=timeout, output_hook=hook)
    return "".join(printed).strip(), reply["content"].get("ename")


@pytest.mark.few(5)
@pytest.mark.parametrize("name", CALLS)
def test_a_cluster_survives_the_interrupt(kernel, name):
    manager, client = kernel
    raised = interrupted(manager, client, f"{CALLS[name]}; None")
    found = run(client, AFTER)
    assert raised == "KeyboardInterrupt"
    assert found[0] == "[] 0 [0, 0] True [0, 1]"


def interrupted(manager, client, code):
    """The name of the error with which ``code`` ends that is interrupted; None if it has none."""
    begun = f"begun {uuid4().hex}"  # by no other word: what a cluster logs is a stream, too
    # a kernel drops what it is sent shortly after an error, unless told not to
    message = client.execute(f"print('{begun}')\n{code}", stop_on_error=False)
    while begun not in client.get_iopub_msg(timeout=240)["content"].get("text", ""):
        pass
    time.sleep(0.5)
    manager.interrupt_kernel()
    while True:
        reply = client.get_shell_msg(timeout=240)
        if reply["parent_header"].get("msg_id") == message:
            return reply["content"].get("ename")
