"""Say after how many steps to save: at two levels, and where the square root is not enough."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from tiledask.lab import plots
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import RED
from tiledask.plan.timing.checkpointing import Checkpointing
from tiledask.plan.units import format_seconds
from tiledask.plan.whole import is_whole

__all__ = ["save_intervals"]

TRAININGS = {
    "A": Checkpointing(0.05, bandwidth=1.0, mtbf=7200.0 * 9 / 8, restart=5.0, step=0.5),
    "B": Checkpointing(20.0, bandwidth=1.0, mtbf=7200.0 * 9, restart=600.0, step=0.5),
    "C": Checkpointing(200.0, bandwidth=1.0, mtbf=1200.0, restart=60.0, step=10.0),
}
"""Two levels of one training, in memory and on shared storage, for which one failure in nine is;
another training on a slow disk, which fails every twenty minutes."""
MOST = 1.0
"""Percent beyond the least time lost."""
LONGEST = 100_000


def save_intervals() -> Exercise:
    """Give for two levels of one training, and for another training, the steps from one save to
    the next; judged by the whole sum of what saving and failures cost, `Checkpointing.stretch`.

    >>> save_intervals().check((1, 1, 1)).legal  # and good?
    True
    """

    def lost(name: str, every: int) -> float:
        return replace(TRAININGS[name], every=every).stretch - 1

    @cache
    def least(name: str) -> float:
        start = TRAININGS[name].steps or 1
        return min(lost(name, every) for every in range(max(1, start // 4), 4 * start))

    def measure(answer: Sequence[int]) -> list[Target]:
        return [
            Target(
                f"{name}: time lost beyond the least, %",
                MOST,
                100 * (lost(name, every) / least(name) - 1),
                0,
                where=f"every {every:,} steps",
            )
            for name, every in zip(TRAININGS, answer, strict=False)
        ]

    def figure(answer: Any) -> Figure:
        yours = dict(zip(TRAININGS, answer or (), strict=False))
        missed = [not target.met for target in measure(answer or ())]
        found = {name for name, no in zip(yours, missed, strict=True) if not no}
        tried = [round(10 ** (n / 12)) for n in range(50)]
        # the valley is shown to those who have been in it
        curves = {
            f"{name}, saving and failures" if name in found else f"{name}, saving alone": {
                every: lost(name, every) if name in found else each.cost / each.step / every
                for every in tried
            }
            for name, each in TRAININGS.items()
        }
        points = {f"yours, {n}": {every: min(lost(n, every), 1e3)} for n, every in yours.items()}
        title = "What saving and failures cost at each level"
        drawn = plots.time_lost(curves, points, title=title + " (not attempted)" * (not answer))
        for line in drawn.axes[0].lines:
            name = str(line.get_gid()).removeprefix("yours, ")
            if name in yours and missed[list(yours).index(name)]:
                line.set(color=RED, gid=f"wrong {name}")
        return drawn

    said = "; ".join(
        f"{name}: a save takes {format_seconds(each.cost)}, a step {format_seconds(each.step)}, "
        f"and steps go on {format_seconds(each.restart)} after a failure"
        for name, each in TRAININGS.items()
    )
    return Exercise(
        name="how often two trainings save",
        question=(
            f"Failures come at random. {said}. A and B are two levels of one training, which fails "
            f"every 120 minutes: B is for one failure in nine, which takes a host's memory along, "
            f"and A for the others. C fails every 20 minutes. Give for each the steps from one "
            f"save to the next: what is lost by saving, doing again and restarting shall be at "
            f"most {MOST:g} % more than the least that can be."
        ),
        form=f"{len(TRAININGS)} whole numbers from 1 to {LONGEST:,}, one a row, for example "
        f"(9, 9, 9)",
        hints=(
            "Which of the numbers does the square root need? Of eight failures in nine, and of one "
            "in nine: how far are they apart?",
            "The root holds where the interval is far below the time between failures. Where is "
            "it not?",
            "For C look at the whole sum: td.formulas.Checkpointing(..., step=, every=).stretch "
            "for several numbers of steps.",
        ),
        measured=measure,
        drawn=figure,
        read=_read,
    )


def _read(answer: Any) -> list[int] | None:
    values = list(answer) if isinstance(answer, tuple | list) else []
    whole = all(is_whole(x) and 1 <= x <= LONGEST for x in values)
    return values if whole and len(values) == len(TRAININGS) else None
