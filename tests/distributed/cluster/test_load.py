"""What other processes took of the cores: counted, theirs and ours told apart."""

import subprocess
import sys

import psutil
from oracles.waiting import wait_until

from tiledask.distributed.cluster.counters import core_seconds, load_since

BURN = "import time\nwhile time.process_time() < {}: pass\n"
"""A process that takes so many seconds of a core, however long that takes."""
DETACHED = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', {!r}])"
"""One that starts it and is gone, so that it is nobody's child any more."""


def test_what_others_do_is_counted_and_what_this_process_started_is_not():
    begun = core_seconds()
    subprocess.run([sys.executable, "-c", BURN.format(0.5)], check=True)
    before = load_since(begun)
    assert 0 <= before.others <= before.busy <= psutil.cpu_count() + 0.5
    begun = core_seconds()
    subprocess.run([sys.executable, "-c", DETACHED.format(BURN.format(1.0))], check=True)
    wait_until(lambda: load_since(begun).others > 0, "somebody else's work")
