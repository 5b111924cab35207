"""Waiting for what is told a moment later: a test that looks once depends on the machine's mood."""

import re
import time

import pytest


def wait_until(true, what="", seconds=200.0):
    """Return once ``true()`` is true; an AssertionError that says ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what or true}"
        time.sleep(0.02)


def raised_late(error, words, run):
    """What ``run(seconds)`` raises when its time is over: ``error``, which says ``words``.

    Given more and more seconds: those that a busy machine takes to come where it is said.
    """
    for seconds in (1.0, 4.0, 16.0, 60.0):
        with pytest.raises(error) as raised:
            run(seconds)
        if re.search(words, str(raised.value)):
            break
    assert re.search(words, str(raised.value)), str(raised.value)
    return raised.value
