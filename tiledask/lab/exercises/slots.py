"""Place tasks in slots so that the fullest has as little to do as can be; run and counted."""

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from distributed import get_worker

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.judging import Exercise, Target
from tiledask.plan.whole import is_whole

__all__ = ["least_load", "tasks_on_slots"]

UNITS = (7, 7, 6, 6, 5, 5, 4, 4, 4)
"""Lengths of nine tasks. Longest first, each to the slot with the least to do, gives 15; 12 is
possible. That rule is never further off: Graham, "Bounds on multiprocessing timing anomalies",
1969, (4/3 - 1/12) x 12 on 4 machines."""
UNIT = 0.05
"""Seconds of one unit."""


def tasks_on_slots(cluster: Cluster, units: Sequence[int] = UNITS) -> Exercise:
    """Place each task in a slot so that the fullest slot has as little to do as can be.

    The answer is a tuple with the slot of each task. It is run: every task says which worker did
    it, and the units are added up by worker.
    """
    slots = cluster.slots

    best = least_load(tuple(units), slots)

    def measure(places: tuple[int, ...]) -> list[Target]:
        done = _run_naps(cluster, places, units)
        load = [sum(n for slot, n in done if slot == s) for s in range(slots)]
        full, free = load.index(max(load)), load.index(min(load))
        mine = [i for i, s in enumerate(places) if s == full]
        where = (
            f"slot {full} has tasks {', '.join(map(str, mine))}, slot {free} only {min(load)} units"
        )
        return [Target("units in the fullest slot", best, max(load), best, where=where)]

    return Exercise(
        name="tasks on slots",
        form=f"a tuple of {len(units)} slots, each 0..{slots - 1}, for the tasks in turn, for "
        f"example {(*range(slots), 0, 0)[:5]} and so on",
        hints=(
            "Add up all units: how many are there for each slot?",
            "Longest first, each to the slot with the least to do, is a good rule and not the "
            "best. Which tasks add up to an even share exactly?",
            "Look for pairs of tasks that fill a slot; the shortest ones fill the last slot by "
            "themselves.",
        ),
        measured=measure,
        read=lambda answer: _slots_of(answer, len(units), slots),
    )


def _slots_of(answer: Any, tasks: int, slots: int) -> tuple[int, ...] | None:
    places = tuple(answer) if isinstance(answer, Sequence) and not isinstance(answer, str) else ()
    whole = all(is_whole(s, 0, slots - 1) for s in places)
    return places if len(places) == tasks and whole else None


def _run_naps(
    cluster: Cluster, places: Sequence[int], units: Sequence[int]
) -> list[tuple[int, int]]:
    """Run the tasks: for each (the slot whose worker did it, the units that it did)."""
    tries = [
        cluster.submit(slot, _nap, n, name=f"nap_{n}")
        for slot, n in zip(places, units, strict=True)
    ]
    return cluster.gather(tries, "the tasks of the exercise", cancel=True)


def _nap(units: int) -> tuple[int, int]:
    time.sleep(units * UNIT)
    return int(get_worker().name), units


@lru_cache(maxsize=16)
def least_load(units: tuple[int, ...], slots: int) -> int:
    """The smallest possible load of the fullest slot, found by trying every placement.

    >>> least_load((3, 3, 2, 2, 2), slots=2)
    6
    """
    loads = {(0,) * slots}
    for n in units:  # slots are alike: sorted loads are all that matters of a placement
        loads = {
            tuple(sorted((*load[:s], load[s] + n, *load[s + 1 :])))
            for load in loads
            for s in range(slots)
        }
    return min(max(load) for load in loads)
