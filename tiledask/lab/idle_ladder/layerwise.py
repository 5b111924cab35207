"""Levels 3 to 6: one batch at a time, so that all wait but one; their idle time in seconds."""

from collections.abc import Sequence
from math import lcm
from random import Random

from tiledask.lab.idle_ladder.arithmetic import listed, num, percent, plus, total
from tiledask.lab.idle_ladder.level import IdleLevel, Line, Run, gaps_of
from tiledask.lab.idle_ladder.numbers import Asked, Numbers
from tiledask.lab.judging.reading import SHARE
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["from_few_to_many", "idle_in_all", "idle_with_transfers", "uneven_stages"]


def _one_batch(
    forward: Sequence[float], backward: Sequence[float], latency: Sequence[float] | float = 0.0
) -> Timeline:
    return simulate(schedule("naive", len(forward), 1), forward, backward, latency=latency)


def _idle_of_each(run: Timeline, forward: Sequence[int], backward: Sequence[int], end: int):
    """The numbers asked for: every worker's idle time. ``end`` comes of a common mistake."""
    works = [f + b for f, b in zip(forward, backward, strict=True)]
    asked = []
    for w, right in enumerate(run.idle_per_device):
        mistakes = [
            (works[w], f"that is how long worker {w + 1} works"),
            (run.makespan, "that is how long the whole batch takes"),
            (end - works[w], "something is paid twice: on the way there, and on the way back"),
            (sum(forward) - forward[w], "that is its wait while the batch goes forward"),
        ]
        told = tuple(each for each in mistakes if each[0] != right)
        asked.append(Asked(f"worker {w + 1}'s idle time", right, worker=w, mistakes=told))
    return Numbers(tuple(asked))


def _each_worker(run: Timeline, works: Sequence[Sequence[int]], end: int) -> list[Line]:
    """A line per worker: what it works, and what is left of the whole."""
    return [
        Line(
            f"Worker {w + 1} works {total(mine)} s and waits {end} - {sum(mine)} = "
            f"{end - sum(mine)} s",
            tuple(gaps_of(run, w)),
        )
        for w, mine in enumerate(works)
    ]


def _stages(rng: Random) -> tuple[int, list[int]]:
    """(workers, the forward seconds of each, not all alike)."""
    p = rng.choice((3, 4))
    while True:
        forward = [rng.randint(1, 7) for _ in range(p)]
        if len(set(forward)) > 1:
            return p, forward


def uneven_stages(head: dict, rng: Random) -> IdleLevel:
    """The idle time of each worker with stages such as 3, 5 and 2."""
    p, forward = _stages(rng)
    backward = [2 * f for f in forward]
    run = _one_batch(forward, backward)
    end = sum(forward) + sum(backward)
    works = list(zip(forward, backward, strict=True))
    return IdleLevel(
        **head,
        question=(
            f"{p} workers, counted from 1, hold stages of {listed(forward)} s forward, and twice "
            f"that back. One batch goes forward through all, then back; transfers take nothing. "
            f"How long is each worker idle, from the start of the batch to its end?"
        ),
        form=f"the seconds of workers 1 to {p}, for example '10 s, 8 s, 20 s' for 3",
        hints=(
            "Only one works at a time: whoever works, all the others wait.",
            "So a worker waits for everything that is not its own work. How long does the whole "
            "batch take, forward and back?",
            f"The batch takes {plus(forward)} s forward and twice that back. Take away what a "
            f"worker does itself: worker 1 works {forward[0]} + {backward[0]} s.",
        ),
        sheet=_idle_of_each(run, forward, backward, sum(forward)),
        runs=(Run(f"{p} workers, one batch", run),),
        lines=(
            Line(f"The batch takes {total(forward)} s forward and {total(backward)} s back"),
            Line(
                f"One works at a time, so it ends after {sum(forward)} + {sum(backward)} = {end} s"
            ),
            *_each_worker(run, works, end),
            Line("Answer: " + ", ".join(f"{end - f - b} s" for f, b in works)),
        ),
    )


def idle_with_transfers(head: dict, rng: Random) -> IdleLevel:
    """The same, with blocks that take time from one worker to the next."""
    p, forward = _stages(rng)
    backward = [2 * f for f in forward]
    sends = [rng.randint(1, 4) for _ in range(p - 1)]
    run = _one_batch(forward, backward, sends)
    compute, way = sum(forward) + sum(backward), sum(sends)
    end = compute + 2 * way
    works = list(zip(forward, backward, strict=True))
    ways = listed([f"{c} s from worker {w} to {w + 1}" for w, c in enumerate(sends, 1)])
    return IdleLevel(
        **head,
        question=(
            f"{p} workers, counted from 1, hold stages of {listed(forward)} s forward, and twice "
            f"that back. One batch goes forward through all, then back. A block takes {ways}, and "
            f"as long on the way back. How long is each worker idle, from the start of the batch "
            f"to its end? Waiting for a block on its way is idle time too."
        ),
        form=f"the seconds of workers 1 to {p}, for example '10 s, 8 s, 20 s' for 3",
        hints=(
            "While a block is on its way nobody works at all.",
            "First the end of the batch: all the work, and all the ways, there and back. Then take "
            "away what each worker does itself.",
            f"Without transfers the batch takes {plus(forward)} s forward and twice that back. The "
            f"ways add {plus(sends)} s, and once more on the way back.",
        ),
        sheet=_idle_of_each(run, forward, backward, compute + way),
        runs=(Run(f"{p} workers, one batch, with transfers", run),),
        lines=(
            Line(f"All the work: {sum(forward)} s forward + {sum(backward)} s back = {compute} s"),
            Line(f"All the ways, there and back: 2 x ({plus(sends)}) = {2 * way} s"),
            Line(f"The batch ends after {compute} + {2 * way} = {end} s"),
            *_each_worker(run, works, end),
            Line("Answer: " + ", ".join(f"{end - f - b} s" for f, b in works)),
        ),
    )


def idle_in_all(head: dict, rng: Random) -> IdleLevel:
    """Total idle time: (p - 1) T, however the model is cut."""
    p = rng.randint(3, 6)
    forward = [rng.randint(1, 7) for _ in range(p)]
    T = 3 * sum(forward)
    run = _one_batch(forward, [2 * f for f in forward])
    gaps = tuple(gap for w in range(p) for gap in gaps_of(run, w))
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
        sheet=Numbers(
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
            Line(f"One after the other, cut anywhere, the stages take T = {T} s"),
            Line(f"One works, {p} - 1 = {p - 1} wait: {p - 1} x {T} = {(p - 1) * T} s", gaps),
            Line(f"All worker-time is {p} x {T} = {p * T} s: {(p - 1) * T}/{p * T} = {p - 1}/{p}"),
            Line(f"Answer: {(p - 1) * T} s, {p - 1}/{p}"),
        ),
    )


_STEPS = ((2, 4), (2, 3), (2, 6), (2, 8), (3, 4), (3, 6), (4, 6), (4, 8))


def from_few_to_many(head: dict, rng: Random) -> IdleLevel:
    """Utilisation, time and idle time when workers are added and nothing else changes."""
    p, q = rng.choice(_STEPS) if head["seed"] else _STEPS[0]
    whole = lcm(p, q) * rng.randint(1, 4)
    T = 3 * whole
    few, many = (_one_batch([whole / n] * n, [2 * whole / n] * n) for n in (p, q))
    gaps = [
        tuple(gap for w in range(n) for gap in gaps_of(run, w, i))
        for i, (n, run) in enumerate(((p, few), (q, many)))
    ]
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
        sheet=Numbers(
            (
                _utilisation(p, few, 0),
                _utilisation(q, many, 1),
                Asked(
                    f"the time for a batch with {q} workers",
                    many.makespan,
                    run=1,
                    mistakes=((T / q, "that would need all of them to work at the same time"),),
                ),
                Asked(
                    "the growth of the idle time",
                    many.idle - few.idle,
                    run=1,
                    mistakes=((many.idle, f"that is all idle time with {q} workers"),),
                ),
            )
        ),
        runs=(Run(f"{p} workers, one batch", few), Run(f"{q} workers, one batch", many)),
        lines=(
            Line(f"The batch takes {whole} + {2 * whole} = {T} s, with {p} workers and with {q}"),
            Line(
                f"One of {p} works: 1/{p} = {percent(1 / p)}; one of {q}: 1/{q} = {percent(1 / q)}"
            ),
            Line(f"With {p} workers {p - 1} wait for {T} s: {(p - 1) * T} s", gaps[0]),
            Line(f"With {q} workers {q - 1} wait for {T} s: {(q - 1) * T} s", gaps[1]),
            Line(f"It grows by {(q - 1) * T} - {(p - 1) * T} = {more} s, {num(more / T)} x {T}"),
            Line(f"Answer: 1/{p}, 1/{q}, {T} s, {more} s"),
        ),
    )


def _utilisation(p: int, run: Timeline, number: int) -> Asked:
    told = ((run.bubble_fraction, "that is the idle share"),) if p != 2 else ()
    return Asked(f"the utilisation with {p} workers", run.utilisation, SHARE, None, number, told)
