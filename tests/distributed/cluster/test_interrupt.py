"""Interrupting a notebook stops the waiting and nothing else, in a real kernel."""

import time

import pytest
from jupyter_client.manager import start_new_kernel

pytestmark = pytest.mark.cluster

START = """
import time
import tiledask as td
cluster = td.start_cluster(workers=2, device="cpu", quiet=True)
pids = cluster.run(__import__("os").getpid)
"""
WAIT = """
futures = [cluster.submit(i % 2, time.sleep, 0.25) for i in range(400)]
print("now")
cluster.wait(futures, "naps that take 50 s", cancel=True)
"""
AFTER = """
del futures
print(cluster.run(__import__("os").getpid) == pids,
      cluster.gather([cluster.submit(i, abs, -i) for i in range(2)], "after", timeout=30))
"""


@pytest.fixture
def kernel():
    manager, client = start_new_kernel(startup_timeout=60)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(client, code, timeout=60):
    """(what the cell printed, the name of its error if any)."""
    printed = []

    def hook(message):
        if message["msg_type"] == "stream":
            printed.append(message["content"]["text"])

    reply = client.execute_interactive(code, timeout=timeout, output_hook=hook)
    return "".join(printed).strip(), reply["content"].get("ename")


def test_a_cluster_survives_the_interrupt(kernel):
    manager, client = kernel
    assert run(client, START) == ("", None)
    # a kernel drops what it is sent shortly after an error, unless told not to
    message = client.execute(WAIT, stop_on_error=False)
    while client.get_iopub_msg(timeout=60)["msg_type"] != "stream":
        pass
    time.sleep(0.5)
    begun = time.monotonic()
    manager.interrupt_kernel()
    while True:
        reply = client.get_shell_msg(timeout=30)
        if reply["parent_header"].get("msg_id") == message:
            break
    stopped_after = time.monotonic() - begun
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert stopped_after < 25
    assert run(client, AFTER, timeout=60) == ("True [0, 1]", None)
    run(client, "cluster.close()")
