"""Find from which latency on GPipe finishes before a schedule that has less idle time without."""

from collections.abc import Sequence
from functools import cache
from itertools import count
from typing import Any

from tiledask.lab import plots, sweep
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots.primitives import Figure, limit_line
from tiledask.lab.plots.style import RED
from tiledask.plan.units import format_seconds

__all__ = ["gpipe_ahead"]

STEP = 0.01
"""Seconds: the grid on which the smallest latency is sought."""
TIE = 0.001
"""Seconds that a winner is ahead at least: less is a tie."""
LONGEST = 2.0
"""Seconds of latency up to which there is anything to find."""


def gpipe_ahead(
    devices: int = 4,
    microbatches: int = 8,
    against: Sequence[str] = ("1f1b", "interleaved", "zb-h1"),
) -> Exercise:
    """Say for each schedule in ``against`` the smallest latency at which GPipe finishes before it.

    A device's share of the model takes 1 s forward and 2 s back. The answer is a tuple of
    latencies in seconds, hundredths, one per schedule; each is judged by simulating both.
    """

    @cache
    def finish(name: str, steps: int) -> float:
        return sweep.same_work(name, devices, microbatches, latency=steps * STEP).makespan

    def ahead(name: str, steps: int) -> bool:
        return finish("gpipe", steps) <= finish(name, steps) - TIE

    def measure(answer: list[int]) -> list[Target]:
        behind, found = [], []
        for name, steps in zip(against, answer, strict=True):
            if not ahead(name, steps):
                behind.append(
                    f"at a latency of {steps * STEP:g} s GPipe needs "
                    f"{format_seconds(finish('gpipe', steps))} and {name} "
                    f"{format_seconds(finish(name, steps))}: too low, GPipe is not ahead"
                )
            least = next(n for n in count(1) if ahead(name, n)) * STEP
            words = f"seconds of latency against {name}"
            least, mine = round(least, 2), round(steps * STEP, 2)
            found.append(Target(words, least, mine, least, least=True))
        wrong = Target("latencies at which GPipe is not ahead", 0, len(behind), 0, remarks=behind)
        return [wrong, *found]

    def figure(answer: Any) -> Figure:
        tried = [n * STEP for n in answer or ()]
        latencies = sorted({n / 20 for n in range(25)} | set(tried))
        names = ("gpipe", *against) if tried else ("gpipe",)  # the crossings are the answer
        curves = sweep.bubble_by_latency(names, devices, microbatches, latencies)
        words = "dotted: yours, red where GPipe is not ahead"
        words = "not attempted" if answer is None else words
        title = f"Idle share against latency, p = {devices}, m = {microbatches} ({words})"
        drawn = plots.bubble_against_latency(curves, reference=None, title=title)
        for name, x in zip(against, tried, strict=False):
            early = not ahead(name, round(x / STEP))
            colour, width = (RED, 1.6) if early else ("black", 1.0)
            gid = f"wrong {name}" if early else "answer"
            look = {"color": colour, "linestyle": ":", "linewidth": width, "gid": gid}
            limit_line(drawn.axes[0], x, **look)
        return drawn

    return Exercise(
        name="where GPipe gets ahead",
        question=(
            f"{devices} devices, {microbatches} micro-batches, 1 s forward and 2 s back per "
            f"device. For each of {', '.join(against)}, of 2 chunks a device where it has chunks, "
            f"give the smallest latency, in whole hundredths of a second, at which GPipe finishes "
            f"before it, by {TIE:g} s or more."
        ),
        form=f"a tuple of {len(against)} latencies in seconds, hundredths above 0 and up to "
        f"{LONGEST:g}, for example {(0.3,) * len(against)}",
        hints=(
            "Without latency, by how many seconds does GPipe finish later than each of them?",
            "Each second of latency costs GPipe one hop there and back over all devices. How often "
            "does a schedule with backwards in between wait for its neighbour?",
            "What a schedule starts ahead, divided by how much faster it falls behind: work that "
            "out, then simulate on both sides with td.studies.same_work(name, p, m, latency=...).",
        ),
        measured=measure,
        drawn=figure,
        read=lambda answer: _steps(answer, len(against)),
    )


def _steps(answer: Any, count: int) -> list[int] | None:
    """``answer`` in steps of the grid, if it is so many."""
    values = tuple(answer) if isinstance(answer, tuple | list) else ()
    on_grid = all(
        isinstance(x, int | float)
        and not isinstance(x, bool)
        and STEP / 2 < x <= LONGEST
        and abs(x / STEP - round(x / STEP)) < 1e-6
        for x in values
    )
    fits = len(values) == count and on_grid
    return [round(x / STEP) for x in values] if fits else None
