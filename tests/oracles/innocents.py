"""A task that ends its worker, among others that do nothing wrong."""

import os
import re
import signal
import time

import pytest

from tiledask.errors import ClusterLostError

INNOCENTS = 40


def number(n, seconds):
    time.sleep(seconds)
    return n


def ends(how, seconds):
    time.sleep(seconds)
    if how == "exit":
        os._exit(1)
    os.kill(os.getpid(), signal.SIGKILL)


def poison_among_innocents(cluster, how, seconds):
    """The guilty task is named, and the others return what they should."""

    def some(these):
        names = {"name": "innocent"}
        return [cluster.submit(n % 2, number, n, 0.05, beside=n % 5 == 0, **names) for n in these]

    tasks = some(range(INNOCENTS // 2))
    guilty = cluster.submit(1, ends, how, seconds, name="guilty")
    tasks += some(range(INNOCENTS // 2, INNOCENTS))
    with pytest.raises(ClusterLostError) as raised:
        cluster.wait([guilty], "solving", 240)
    assert cluster.gather(tasks, "innocents", 240) == list(range(INNOCENTS))
    words = str(raised.value)
    assert "solving: task guilty-" in words
    assert re.search("ended the worker of slot 1 [47] times", words)  # ours, or as Dask is set
    assert len(words) <= 600
