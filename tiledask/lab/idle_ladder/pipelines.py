"""Levels 7 to 10 and 12: micro-batches; two triangles, a target, the best number, a slow stage."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache, partial
from random import Random

from tiledask.lab.idle_ladder.arithmetic import listed, num, total
from tiledask.lab.idle_ladder.level import IdleLevel, Run
from tiledask.lab.idle_ladder.sheets.numbers import Asked, NumberSheet
from tiledask.lab.idle_ladder.sheets.one_number import BestNumber, FewestNumber
from tiledask.lab.judging.reading import COUNT, SHARE
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_percent

__all__ = [
    "best_with_overhead",
    "fewest_for_a_share",
    "one_slow_stage",
    "triangles",
    "which_microbatches",
]

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


_TARGETS = (10, 12, 15, 20, 25, 30, 35, 40)


@cache
def _run(p: int, m: int) -> Timeline:
    return simulate(schedule("1f1b", p, m), 1.0, 2.0)


def fewest_for_a_share(head: dict, rng: Random) -> IdleLevel:
    """m for a target idle share."""
    p, target = rng.randint(3, 9), rng.choice(_TARGETS)
    share = Fraction(target, 100)

    rounds = (p - 1) / share
    m = math.ceil(rounds) - (p - 1)
    best = _run(p, m)
    fewer = Fraction(p - 1, m + p - 2)
    return IdleLevel(
        **head,
        question=(
            f"{p} equal stages, one on each worker, run 1F1B; a backward takes twice as long as a "
            f"forward, transfers nothing. At most {target} % of all worker-time may be idle. How "
            f"many micro-batches does that need? Give the fewest."
        ),
        form="a whole number, for example '150'",
        hints=(
            "Each worker waits for p - 1 micro-batches' time, however many there are.",
            "So m rounds of work stand beside p - 1 rounds of waiting: the idle share is "
            "(p - 1) / (m + p - 1).",
            f"{p - 1} / (m + {p - 1}) must be at most {share}. Then m + {p - 1} is at least "
            f"{p - 1} divided by {share}; a fraction is rounded up.",
        ),
        sheet=FewestNumber(partial(_run, p), float(share)),
        runs=(Run(f"1F1B, {p} workers", best),),
        lines=(
            f"Each worker waits {p} - 1 = {p - 1} rounds of F + B",
            (
                f"{p - 1} / (m + {p - 1}) is at most {share}, so m + {p - 1} is at least "
                f"{p - 1} / ({share}) = {num(float(rounds))}"
            ),
            (
                f"m is at least {num(float(rounds))} - {p - 1} = {num(float(rounds) - p + 1)}, "
                f"and whole: {m}"
            ),
            (
                f"With {m}: {format_percent((p - 1) / (m + p - 1))} idle; with {m - 1}: "
                f"{format_percent(float(fewer))}"
            ),
            f"Answer: {m}",
        ),
    )


def best_with_overhead(head: dict, rng: Random) -> IdleLevel:
    """The best m where every action costs something, however small it is."""
    options = (1, 2, 4, 8, 16, 32)
    while True:
        p, F, o = rng.randint(3, 6), rng.choice((8, 16, 24, 32)), rng.choice((0.25, 0.5, 1, 2))
        T = 3 * F
        times = {m: (m + p - 1) * (T / m + 2 * o) for m in options}
        m = min(times, key=times.__getitem__)
        second = sorted(times.values())[1]
        if m not in (options[0], options[-1]) and second > 1.01 * times[m]:
            break

    @cache
    def run(m: int) -> Timeline:
        return simulate(schedule("1f1b", p, m), F / m + o, 2 * F / m + o)

    best = run(m)
    step = num(T / m + 2 * o)
    return IdleLevel(
        **head,
        question=(
            f"{p} equal stages run 1F1B. The whole batch takes a stage {F} s forward and {2 * F} s "
            f"back; cut into m micro-batches, each takes 1/m of that, and every action costs "
            f"{o:g} s more, however small it is. Transfers take nothing. Which m of "
            f"{listed(options)} ends the batch first, and after how many seconds?"
        ),
        form="the micro-batches and the seconds, for example '4, 91.7 s'",
        hints=(
            "More micro-batches shorten the wait, and pay the cost of an action more often: the "
            "best is somewhere between.",
            "m + p - 1 rounds, and a round is a forward and a backward: both cost extra.",
            f"(m + {p - 1}) ({T}/m + 2 x {o:g}) seconds: for m = 1 that is {p} x "
            f"{num(T + 2 * o)} = {num(times[1])}. Work out the others; the best has about as much "
            f"waiting as extra cost.",
        ),
        sheet=BestNumber(
            run,
            options,
            lambda k: (
                ((k + p - 1) * T / k, "that is without the cost of an action"),
                ((k + p - 1) * (T / k + o), "a round has two actions, and each costs extra"),
                (k * (T / k + 2 * o), "that is the work of one worker, without any waiting"),
            ),
        ),
        runs=(Run(f"1F1B, {p} workers", best),),
        lines=(
            *(
                (
                    f"m = {k}: ({k} + {p - 1}) x ({T}/{k} + 2 x {o:g}) = {k + p - 1} x "
                    f"{num(T / k + 2 * o)} = {num(times[k])} s"
                )
                for k in options
            ),
            (
                f"The least is {num(times[m])} s, at m = {m}; there a worker waits {p - 1} x "
                f"{step} = {num((p - 1) * (T / m + 2 * o))} s"
            ),
            f"Answer: {m}, {num(times[m])} s",
        ),
    )


def one_slow_stage(head: dict, rng: Random) -> IdleLevel:
    """The end, the idle time of the slow worker and of another."""
    p, m, F = rng.choice((3, 4)), rng.randint(4, 8), rng.choice((1, 2))
    k, slow = rng.randrange(p), F * rng.choice((2, 3))
    forward = [slow if w == k else F for w in range(p)]
    backward = [2 * f for f in forward]
    run = simulate(schedule("1f1b", p, m), forward, backward)
    # micro-batch 0 goes down and comes back while the slow worker does its forwards in advance
    behind, ahead = (p - 1 - k) * 3 * F, (p - 1 - k) * slow
    inside = max(0, behind - ahead)
    waits = sum(forward[:k]) + inside + sum(backward[:k])
    work = m * 3 * slow
    other = rng.choice([w for w in range(p) if w != k])
    end, other_work = work + waits, m * 3 * F
    middle = ()
    if p - 1 - k:
        words = f"the first backward needs {behind} s below it, and meanwhile it does {ahead} s of "
        words += (
            f"forwards: it waits {behind} - {ahead} = {inside} s"
            if inside
            else ("forwards: no wait")
        )
        middle = (f"In between, {words}",)
    return IdleLevel(
        **head,
        question=(
            f"{p} workers, counted from 1, run 1F1B with {m} micro-batches. A forward takes {F} s "
            f"on each but worker {k + 1}, which takes {slow} s; a backward takes twice as long as "
            f"the forward; transfers take nothing. Give three numbers: after how many seconds all "
            f"is done, how long worker {k + 1} is idle, and how long worker {other + 1} is."
        ),
        form=f"three numbers of seconds: the end, worker {k + 1}, worker {other + 1}; for example "
        f"'50 s, 8 s, 20 s'",
        hints=(
            "The slow worker sets the pace: once it has work it hardly ever stops. The others wait "
            "for it.",
            f"Follow worker {k + 1}: it works {m} times {slow} + {2 * slow} s. Does it wait before "
            f"its first forward, and while others are busy after its last backward?",
            f"{_ends(forward, backward, k)}{_turn(p - k)}. The others wait for all that is not "
            f"their own work.",
        ),
        sheet=NumberSheet(
            (
                Asked(
                    "the end",
                    run.makespan,
                    mistakes=(
                        (work, f"that is the work of worker {k + 1} alone"),
                        ((m + p - 1) * 3 * slow, "that would be so if all were as slow"),
                        ((m + p - 1) * 3 * F, "that would be so if all were as fast"),
                    ),
                ),
                _idle_of(run, k),
                _idle_of(run, other),
            )
        ),
        runs=(Run(f"1F1B, {p} workers, {m} micro-batches", run),),
        lines=(
            f"Worker {k + 1} works {m} x ({slow} + {2 * slow}) = {work} s",
            (
                f"It waits {total(forward[:k])} s for its first forward, and after its last "
                f"backward {total(backward[:k])} s"
            ),
            *middle,
            f"The end: {work} + {waits} = {end} s",
            (
                f"Worker {other + 1} works {m} x ({F} + {2 * F}) = {other_work} s and waits "
                f"{end} - {other_work} = {end - other_work} s"
            ),
            f"Answer: {end} s, {waits} s, {end - other_work} s",
        ),
    )


def _ends(forward: Sequence[int], backward: Sequence[int], k: int) -> str:
    """For what the slow worker waits before its first forward, and after its last backward."""
    if not k:
        return "It begins at once, and nothing is to be done after its last backward"
    return (
        f"Before its first forward the others need {total(forward[:k])} s, after its last backward "
        f"{total(backward[:k])} s"
    )


def _turn(ahead: int) -> str:
    """Where it may wait in between; the last worker does not."""
    if ahead == 1:
        return ""
    return f"; in between see whether a gradient is back when its first {ahead} forwards are done"


def _idle_of(run: Timeline, worker: int) -> Asked:
    right = run.idle_per_device[worker]
    told = [(run.busy_per_device[worker], f"that is how long worker {worker + 1} works")]
    if worker + 1 < run.devices:  # counted from 0, this number is the next one's
        words = f"worker {worker + 2} is idle so long; did you count workers from 0? Here from 1"
        told.append((run.idle_per_device[worker + 1], words))
    mistakes = tuple(each for each in told if each[0] != right)
    return Asked(f"worker {worker + 1}'s idle time", right, worker=worker, mistakes=mistakes)
