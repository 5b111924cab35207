"""Every row of `make faults`: some in `make test`, all in `make test-long`.

Holds `tiledask.lab.faults.apart`, `tiledask.lab.faults.command`, `tiledask.lab.faults.contents`,
`tiledask.lab.faults.damage`, `tiledask.lab.faults.page`, `tiledask.lab.faults.running`,
`tiledask.lab.faults.soak`, `tiledask.lab.faults.table`, `tiledask.lab.faults.trying` and
`tiledask.lab.faults.workloads`.
"""

import argparse
import subprocess
import sys
import time

import psutil
import pytest
from rich.console import Console

from tiledask.errors import ConfigError, DeadlineError
from tiledask.lab.faults import soak
from tiledask.lab.faults.command import measured_row, shown, started_bench
from tiledask.lab.faults.table import FAULTS, Promised
from tiledask.lab.faults.trying import Tried, tried

CASES = [
    pytest.param(
        *(fault, what),
        id=f"{fault.name}: {what}",
        marks=() if what in fault.few else pytest.mark.slow,
    )
    for fault in FAULTS
    for what in fault.of
]


def test_busy_processes_end_with_who_started_them():
    code = "from tiledask.lab.faults.command import busy\nwith busy(1): print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as starter:
        assert starter.stdout.readline()
        (loop,) = psutil.Process(starter.pid).children()
        starter.kill()
    assert psutil.wait_procs([loop], timeout=240)[1] == []


@pytest.fixture(scope="module")
def bench():
    with started_bench() as started:
        yield started


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("fault", "what"), CASES)
def test_what_is_promised_is_kept(bench, fault, what):
    """Its time is `make faults`'s to say: here others may be at work."""
    try:
        found = fault.attempt(bench, what)
    except ConfigError as error:
        pytest.skip(str(error))
    assert fault.keeps(found, what), found


@pytest.mark.cluster
@pytest.mark.slow
def test_a_soak_of_seconds_leaves_nothing():
    asked = argparse.Namespace(minutes=0.5, load=2, rate=60.0, seed=0)
    with started_bench() as bench:
        found = soak.soak(bench, asked, Console())
    assert found["lost workers"] > 0
    assert {*found["ends"]} == {"right"}
    assert all(sum(names.values()) <= 0 for names in found["left"].values()), found["left"]


def raises(error):
    def call():
        raise error

    return call


@pytest.mark.parametrize(
    ("call", "late", "end"),
    [
        (lambda: 1, 9, "right"),
        (lambda: 2, 9, "wrong"),
        (lambda: time.sleep(0.02) or 1, 0.01, "hang"),
        (raises(ConfigError("no")), 9, "said"),
        (raises(DeadlineError("late")), 9, "hang"),
        (raises(TimeoutError("late")), 9, "hang"),
        (raises(OSError(28, "full")), 9, "raw"),
    ],
)
def test_how_a_try_ends(call, late, end):
    assert tried(call, 1, late).end == end


def test_a_timeout_that_was_asked_for_is_no_hang():
    assert tried(raises(DeadlineError("late")), 1, 9, said=True).end == "said"


def test_a_row_says_what_is_not_as_promised():
    ends = iter([Tried("right", 0.1), Tried("right", 9.0), Tried("wrong", 0.2), Tried("hang", 1.0)])
    fault = Promised(
        "x", "right <= 5 s", 5, ("right",), lambda bench, what: next(ends), ("a", "b"), 2
    )
    row = measured_row(None, fault, 2)
    assert (row["tried"], row["wrong"], row["hangs"], row["kept"]) == (4, 1, 1, False)
    assert [words.split(":")[0] for words in row["broken"]] == ["a", "b", "b"]
    assert row["each"] == {"a": [0.1, 9.0], "b": [0.2, 1.0]}
    ends = iter([Tried("right", 9.0)] * 4)
    busy = measured_row(None, fault, 2, in_time=False)
    assert busy["kept"]  # on a busy machine times are printed
    assert shown([row], "faults").row_count == 1
    (over,) = shown([row], "faults", {"x": 0.3}).columns[4].cells
    assert over == "2.0"  # a median of 0.6 s


def test_every_class_is_tried_in_the_suite():
    assert {fault.name for fault in FAULTS if not fault.few} == {
        "killed before the call",
        "killed while starting",
        "worker retired",
        "host cut off",
        "notebook interrupted",  # by test_interrupt.py
    }
    assert all({*fault.few} <= {*fault.of} for fault in FAULTS)
