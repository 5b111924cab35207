"""Place tasks in slots so that the fullest has as little to do as can be; run and counted."""

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from distributed import get_worker

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.errors import ConfigError
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots.style import GREY, PALETTE, RED, canvas, fitting_text, lighter, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

    def measure(answer: Any) -> list[Target]:
        places = _slots_of(answer, len(units), slots)
        done = _run_naps(cluster, places, units)
        load = [sum(n for slot, n in done if slot == s) for s in range(slots)]
        best = least_load(tuple(units), slots)
        return [Target("units in the fullest slot", best, max(load), best)]

    def figure(answer: Any) -> "Figure":
        places = None if answer is None else _slots_of(answer, len(units), slots)
        return _draw_slots(places, units, slots, least_load(tuple(units), slots))

    return Exercise(name="tasks on slots", measured=measure, drawn=figure)


def _slots_of(answer: Any, tasks: int, slots: int) -> tuple[int, ...]:
    places = tuple(answer) if isinstance(answer, Sequence) and not isinstance(answer, str) else ()
    whole = all(isinstance(s, int) and not isinstance(s, bool) and 0 <= s < slots for s in places)
    if len(places) != tasks or not whole:
        raise ConfigError(
            f"an answer is a tuple of {tasks} slots, each 0..{slots - 1}, got {answer!r}"
        )
    return places


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


@styled
def _draw_slots(
    places: Sequence[int] | None, units: Sequence[int], slots: int, best: int
) -> "Figure":
    rows = ["not placed"] if places is None else [f"slot {s}" for s in range(slots)]
    figure = canvas(1.2 + 0.36 * len(rows), "Tasks on slots")
    axes = figure.subplots()
    ends, words = [0] * len(rows), []
    for i, n in enumerate(units):
        row = 0 if places is None else places[i]
        colour = GREY if places is None else lighter(PALETTE[row % len(PALETTE)], 0.1)
        axes.barh(row, n, 0.72, left=ends[row], color=colour, edgecolor="white", gid=f"task {i}")
        words.append(((ends[row], row - 0.36, n, 0.72), f"task {i}: {n}", colour))
        ends[row] += n
    if places is not None:
        axes.axvline(best, color=RED, linestyle="--", label=f"target: at most {best}")
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1))
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.spines[["left"]].set_visible(False)
    axes.set_xlabel(f"units of {UNIT:g} s")
    figure.lay_out()
    for box, text, colour in words:
        fitting_text(axes, box, text, colour)
    return figure
