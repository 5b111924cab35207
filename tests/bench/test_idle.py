"""Idle time of schedules on workers, measured beside simulated: actions sleep, so two cores do.

measured - simulated  =  transfer (waiting for a block that was on its way)
                       + overhead (waiting for an action that could have been running)
                       + knock-on (waiting for a device that these two held up), and the rest
"""

import pytest

import tiledask as td
from tiledask.lab.sweep import schedule_on

FORWARD = 0.02
"""Seconds of a forward; a backward takes twice as long."""


def measured(name, cluster, engine):
    run = td.run_schedule(
        schedule_on(name, cluster.slots, 2 * cluster.slots),
        cluster=cluster,
        forward=FORWARD,
        backward=2 * FORWARD,
        engine=engine,
    )
    timeline, whole = run.timeline, cluster.slots * run.timeline.makespan
    parts = {
        "measured": timeline.bubble_fraction,
        "simulated": run.simulated.bubble_fraction,
        "transfer": timeline.idle_time.total["transfer"] / whole,
        "overhead": timeline.idle_time.total["overhead"] / whole,
        "rest": run.replayed.bubble_fraction - run.simulated.bubble_fraction,
    }
    said = ", ".join(f"{what} {100 * share:.1f} %" for what, share in parts.items())
    return f"{said}; {1e3 * timeline.overhead_per_action:.2f} ms an action"


@pytest.mark.parametrize("engine", ["loop", "tasks"])
def test_idle(in_turns, engine):
    names = ("naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v")
    with td.start_cluster(workers=4, device="cpu", quiet=True) as cluster:
        ways = {name: (lambda name=name: measured(name, cluster, engine)) for name in names}
        in_turns(ways, base="1f1b", rounds=1)
