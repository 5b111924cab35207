"""Waiting for what is told a moment later: a test that looks once depends on the machine's mood."""

import time


def wait_until(true, what="", seconds=200.0):
    """Return once ``true()`` is true; an AssertionError that says ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what or true}"
        time.sleep(0.02)
