"""Levels 5 and 6: all idle time together, (p - 1) T, and what more workers change."""

from math import lcm
from random import Random

from tiledask.lab.idle_ladder.arithmetic import num
from tiledask.lab.idle_ladder.level import IdleLevel, Run
from tiledask.lab.idle_ladder.sheets.numbers import Asked, NumberSheet
from tiledask.lab.judging.reading import SHARE
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_percent

__all__ = ["from_few_to_many", "idle_in_all"]


def idle_in_all(head: dict, rng: Random) -> IdleLevel:
    """Total idle time: (p - 1) T, however the model is cut."""
    p = rng.randint(3, 6)
    forward = [rng.randint(1, 7) for _ in range(p)]
    T = 3 * sum(forward)
    run = simulate(schedule("naive", p, 1), forward, [2 * f for f in forward])
    return IdleLevel(
        **head,
        question=(
            f"A batch takes {T} s on one worker, forward and back. The model is cut over {p} "
            f"workers, layer-wise; nobody tells you where, and the stages are uneven. Transfers "
            f"take nothing, and one batch is under way at a time. How many seconds are the workers "
            f"idle, all together, and which share of all worker-time is that?"
        ),
        form="the seconds of all workers together and the share, for example '48 s, 80 %'",
        hints=(
            "Does the cut change how long the batch takes? Does it change how many work at a time?",
            f"At every moment one of the {p} works. How many wait, and for how long?",
            f"The batch still takes T = {T} s, and p - 1 workers wait all the time: (p - 1) T, of "
            f"p T in all.",
        ),
        sheet=NumberSheet(
            (
                Asked(
                    "the idle time of all workers",
                    run.idle,
                    mistakes=(
                        (run.busy, "that is how long the workers work, all together"),
                        (run.makespan * p, "that is all worker-time, work and waiting"),
                    ),
                ),
                Asked(
                    "the idle share",
                    run.bubble_fraction,
                    SHARE,
                    mistakes=(
                        (run.utilisation, "that is the share in which they work"),
                        (run.bubble_overhead, "that is idle over work; asked is idle over all"),
                    ),
                ),
            )
        ),
        runs=(Run(f"{p} workers, cut somewhere", run),),
        lines=(
            f"One after the other, cut anywhere, the stages take T = {T} s",
            f"One works, {p} - 1 = {p - 1} wait: {p - 1} x {T} = {(p - 1) * T} s",
            f"All worker-time is {p} x {T} = {p * T} s: {(p - 1) * T}/{p * T} = {p - 1}/{p}",
            f"Answer: {(p - 1) * T} s, {p - 1}/{p}",
        ),
    )


_STEPS = ((2, 4), (2, 3), (2, 6), (2, 8), (3, 4), (3, 6), (4, 6), (4, 8))


def from_few_to_many(head: dict, rng: Random) -> IdleLevel:
    """Utilisation, time and idle time when workers are added and nothing else changes."""
    p, q = rng.choice(_STEPS) if head["seed"] else _STEPS[0]
    whole = lcm(p, q) * rng.randint(1, 4)
    T = 3 * whole
    few, many = (simulate(schedule("naive", n, 1), whole / n, 2 * whole / n) for n in (p, q))
    more = (q - 1) * T - (p - 1) * T
    return IdleLevel(
        **head,
        question=(
            f"A model takes {whole} s forward and {2 * whole} s back for a batch. It is cut evenly "
            f"over {p} workers, then over {q}, layer-wise, one batch at a time; transfers take "
            f"nothing. Give four numbers: the utilisation (work over all worker-time) with {p} "
            f"workers and with {q}, the seconds for a batch with {q}, and by how many seconds the "
            f"idle time of all workers together grows."
        ),
        form="two shares and two numbers of seconds, for example '80 %, 0.4, 10 s, 30 s'",
        hints=(
            "Half the layers on each worker: is anything done sooner?",
            "One worker works at a time, whether there are few or many. So what share of them is "
            "at work, and does the batch take longer or shorter than on one?",
            f"The batch takes {whole} + {2 * whole} s in either case. With p workers the share at "
            f"work is 1/p, and p - 1 workers wait all the time.",
        ),
        sheet=NumberSheet(
            (
                _utilisation(p, few),
                _utilisation(q, many),
                Asked(
                    f"the time for a batch with {q} workers",
                    many.makespan,
                    mistakes=((T / q, "that would need all of them to work at the same time"),),
                ),
                Asked(
                    "the growth of the idle time",
                    many.idle - few.idle,
                    mistakes=((many.idle, f"that is all idle time with {q} workers"),),
                ),
            )
        ),
        runs=(Run(f"{p} workers, one batch", few), Run(f"{q} workers, one batch", many)),
        lines=(
            f"The batch takes {whole} + {2 * whole} = {T} s, with {p} workers and with {q}",
            (
                f"One of {p} works: 1/{p} = {format_percent(1 / p)}; one of {q}: 1/{q} = "
                f"{format_percent(1 / q)}"
            ),
            f"With {p} workers {p - 1} wait{'s' * (p == 2)} for {T} s: {(p - 1) * T} s",
            f"With {q} workers {q - 1} wait for {T} s: {(q - 1) * T} s",
            f"It grows by {(q - 1) * T} - {(p - 1) * T} = {more} s, {num(more / T)} x {T}",
            f"Answer: 1/{p}, 1/{q}, {T} s, {more} s",
        ),
    )


def _utilisation(p: int, run: Timeline) -> Asked:
    told = ((run.bubble_fraction, "that is the idle share"),) if p != 2 else ()
    return Asked(f"the utilisation with {p} workers", run.utilisation, SHARE, mistakes=told)
