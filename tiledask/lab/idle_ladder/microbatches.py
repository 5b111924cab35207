"""Levels 7 and 12: the two triangles of a pipeline, and the way back from a utilisation to m."""

from fractions import Fraction
from functools import cache
from random import Random

from tiledask.lab.idle_ladder.arithmetic import listed, num
from tiledask.lab.idle_ladder.level import IdleLevel, Run
from tiledask.lab.idle_ladder.sheets.numbers import Asked, NumberSheet
from tiledask.lab.judging.reading import COUNT, SHARE
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.units import format_percent

__all__ = ["triangles", "which_microbatches"]

_NAMES = {"gpipe": "GPipe", "1f1b": "1F1B"}
_TIMES = ((1, 1), (1, 2), (2, 2), (2, 4), (2, 3), (1, 3), (3, 6))


def triangles(head: dict, rng: Random) -> IdleLevel:
    """The end, the idle time of each worker and the idle share: (p - 1) (F + B) of it all."""
    name, p, m = rng.choice(("gpipe", "1f1b")), rng.randint(2, 5), rng.randint(2, 10)
    F, B = rng.choice(_TIMES)
    run = simulate(schedule(name, p, m), F, B)
    T, ramp = m * (F + B), (p - 1) * (F + B)
    share = Fraction(ramp, ramp + T)
    return IdleLevel(
        **head,
        question=(
            f"{p} equal stages, one on each worker, and {m} micro-batches under {_NAMES[name]}; a "
            f"forward takes {F} s, a backward {B} s, transfers nothing. Give three numbers: after "
            f"how many seconds all is done, how long each worker is idle, and the idle share of "
            f"all worker-time."
        ),
        form="two numbers of seconds and a share, for example '30 s, 7 s, 25 %'",
        hints=(
            "Draw the first micro-batch's way down to the last worker and the last one's way back "
            "up: two triangles of waiting.",
            f"The last worker waits until the first micro-batch has come down {p - 1} "
            f"worker{'s' * (p > 2)}, then works without a break, then waits while the last "
            f"gradient goes up. All wait equally long.",
            f"Idle per worker: (p - 1) (F + B). Work per worker: m (F + B), with F + B = {F + B} "
            f"s. The end is their sum, the share is idle over that sum.",
        ),
        sheet=NumberSheet(
            (
                Asked(
                    "the end",
                    run.makespan,
                    mistakes=(
                        (T, "that is the work of one worker, without any waiting"),
                        (p * T, "that would be one worker after the other"),
                        (T + p * (F + B), "count the steps down: between p workers are p - 1"),
                    ),
                ),
                Asked(
                    "the idle time of a worker",
                    run.idle_per_device[0],
                    mistakes=(
                        ((p - 1) * F, "that is the triangle at the start; another is at the end"),
                        ((p - 1) * B, "that is the triangle at the end; another is at the start"),
                        (p * (F + B), "count the steps down: between p workers are p - 1"),
                        (run.idle, "that is the idle time of all workers together"),
                    ),
                ),
                Asked(
                    "the idle share",
                    run.bubble_fraction,
                    SHARE,
                    mistakes=(
                        (run.bubble_overhead, "that is idle over work; asked is idle over all"),
                        (run.utilisation, "that is the share in which they work"),
                    ),
                ),
            )
        ),
        runs=(Run(f"{_NAMES[name]}, {p} workers, {m} micro-batches", run),),
        lines=(
            f"Each worker works {m} x ({F} + {B}) = {T} s",
            (
                f"Worker {p} waits {p - 1} x {F} s for its first forward and {p - 1} x {B} s after "
                f"its last backward: {p - 1} x ({F} + {B}) = {ramp} s"
            ),
            f"The others wait as long: what is less at the ends is more in between, {ramp} s",
            f"The end: {T} + {ramp} = {T + ramp} s; the share: {ramp}/{T + ramp} = {share}",
            f"Answer: {T + ramp} s, {ramp} s, {share}",
        ),
    )


@cache
def _share(p: int, m: int) -> float:
    return simulate(schedule("1f1b", p, m), 1.0, 2.0).utilisation


@cache
def _behind(p: int, percents: int) -> tuple[int, ...]:
    """All m whose utilisation is shown as so many percents, by trying."""
    return tuple(m for m in range(1, 100) if round(100 * _share(p, m)) == percents)


def which_microbatches(head: dict, rng: Random) -> IdleLevel:
    """The micro-batches behind three utilisations that were seen."""
    p = rng.randint(3, 8)
    seen = sorted(rng.sample([u for u in range(10, 90) if len(_behind(p, u)) == 1], 3))
    if not head["seed"]:
        p, seen = 4, [25, 57, 73]
    right = [m for u in seen for m in _behind(p, u)]
    runs = [simulate(schedule("1f1b", p, m), 1.0, 2.0) for m in right]
    back = [u * (p - 1) / (100 - u) for u in seen]
    lines = [
        (
            f"{u} %: {u / 100:g} x {p - 1} / {(100 - u) / 100:g} = {x:.2f}, so m = {round(x)}: "
            f"{round(x)}/{round(x) + p - 1} = {format_percent(round(x) / (round(x) + p - 1))}"
        )
        for u, x in zip(seen, back, strict=True)
    ]
    shown = listed([f"{u} %" for u in seen])
    return IdleLevel(
        **head,
        question=(
            f"A monitor shows a utilisation of {shown} of {p} workers in three runs, rounded to "
            f"whole percents. They run 1F1B with equal stages, and transfers take nothing. With "
            f"how many micro-batches did each of the three run?"
        ),
        form="three whole numbers, for example '30, 60, 90'",
        hints=(
            "With one micro-batch one worker works at a time. What is the share then?",
            "Utilisation u is m / (m + p - 1): m rounds of work out of m + p - 1. Turn it round.",
            f"m = u (p - 1) / (1 - u), with p - 1 = {p - 1}; round to a whole number, and put it "
            f"back into m / (m + {p - 1}) to see.",
        ),
        sheet=NumberSheet(
            tuple(
                Asked(
                    f"m at {u} %",
                    m,
                    COUNT,
                    mistakes=(
                        (m + p - 1, "that counts the rounds, m + p - 1, and not only m"),
                        (round(p * u / 100, 6), f"that is how many of the {p} work on average"),
                    ),
                )
                for u, m in zip(seen, right, strict=True)
            )
        ),
        runs=tuple(Run(f"{p} workers, {u} % busy", run) for u, run in zip(seen, runs, strict=True)),
        lines=(
            f"u = m / (m + {p - 1}), so m = u x {p - 1} / (1 - u)",
            *lines,
            "Answer: " + ", ".join(num(round(x)) for x in back),
        ),
    )
