"""Levels 7 to 12: micro-batches; two triangles, a target, the best number, a slow stage, gaps."""

import math
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.tasks.ladder.fields import Asked, Head, level_of, listed, num, total
from tiledask.lab.tasks.ladder.one_batch import idle_share
from tiledask.lab.tasks.result import WRONG, Target
from tiledask.lab.tasks.task import JudgedTask
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_percent

__all__ = ["best_with_overhead", "fewest_for_a_share", "one_slow_stage", "triangles"]
__all__ += ["gaps_of", "which_gap_is_which", "which_microbatches"]

_TIMES = ((1, 1), (1, 2), (2, 2), (2, 4), (2, 3), (1, 3), (3, 6))
_TINY = 1e-9
"""Seconds: rounding of sums."""
_CAUSES = {
    "warm-up": "warm.?(ing.?)?up|ramp.?up|fill(ing)?",
    "transfer": "transfers?|wait.*transfer|communication|latency|send(ing)?",
    "imbalance": "imbalanced?|unbalanced|uneven|slow stage",
    "drain": "drain(ing|ed)?|cool.?down|ramp.?down",
}
"""Why a worker is idle -> what else people call it."""
_UNEVEN = (
    *((2, 1, 2), (3, 2, 3), (1, 2, 1, 2), (2, 1, 2, 1), (2, 2, 1, 2), (2, 3, 2, 3)),
    *((3, 2, 1, 2), (3, 2, 1, 3), (3, 2, 3, 1), (3, 2, 3, 2), (3, 3, 2, 3)),
)
"""Forwards, over the time of a transfer, that often leave gaps of all kinds."""


@cache
def one_f_one_b(p: int, m: int) -> Timeline:
    """The simulated run of 1F1B, where a backward takes twice as long as a forward."""
    return simulate(schedule("1f1b", p, m), 1.0, 2.0)


def triangles(head: Head, rng: Random) -> JudgedTask:
    """The end, the idle time of each worker and the idle share: (p - 1) (F + B) of it all."""
    name, p, m = rng.choice(("gpipe", "1f1b")), rng.randint(2, 5), rng.randint(2, 10)
    F, B = rng.choice(_TIMES)
    run = simulate(schedule(name, p, m), F, B)
    name = {"gpipe": "GPipe", "1f1b": "1F1B"}[name]
    T, ramp = m * (F + B), (p - 1) * (F + B)
    share, steps = Fraction(ramp, ramp + T), "count the steps down: between p workers are p - 1"
    end = (
        (T, "that is the work of one worker, without any waiting"),
        (p * T, "that would be one worker after the other"),
        (T + p * (F + B), steps),
    )
    idle = (
        ((p - 1) * F, "that is the triangle at the start; another is at the end"),
        ((p - 1) * B, "that is the triangle at the end; another is at the start"),
        (p * (F + B), steps),
        (run.idle, "that is the idle time of all workers together"),
    )
    fields = (
        Asked("the end", run.makespan, end),
        Asked("the idle time of a worker", run.idle_per_device[0], idle),
        idle_share(run),
    )
    words: dict[str, Any] = {"p": p, "q": p - 1, "m": m, "name": name, "F": F, "B": B}
    words |= {"both": F + B, "others": f"{p - 1} worker{'s' * (p > 2)}", "T": T, "ramp": ramp}
    words |= {"end": T + ramp, "share": share}
    return level_of(head, fields, {f"{name}, {p} workers, {m} micro-batches": run}, words)


def fewest_for_a_share(head: Head, rng: Random) -> JudgedTask:
    """m for a target idle share."""
    p, percent, most = rng.randint(3, 9), rng.choice((10, 12, 15, 20, 25, 30, 35, 40)), 200
    share, wanted = Fraction(percent, 100), percent / 100
    rounds = num(float((p - 1) / share))
    exact, m = num(float((p - 1) / share) - p + 1), math.ceil((p - 1) / share) - (p - 1)
    left, fewer = (format_percent((p - 1) / (n + p - 1)) for n in (m, m - 1))
    least = next(n for n in range(1, most) if one_f_one_b(p, n).bubble_fraction <= wanted + 1e-9)

    def judge(given: list[Any]) -> list[Target]:
        n = int(given[0])
        if not 1 <= n <= most:
            raise ConfigError(f"there are 1 to {most} micro-batches here; got {given[0]:g}")
        idle = one_f_one_b(p, n).bubble_fraction
        words = f"{n} leave {format_percent(idle)} idle, more than {format_percent(wanted)}"
        return [
            Target("idle share", wanted, idle, why=words),
            Target("micro-batches", least, n, least, least=True),
        ]

    words: dict[str, Any] = {"p": p, "q": p - 1, "percent": percent, "share": share}
    words |= {"rounds": rounds, "exact": exact, "m": m, "left": left, "n": m - 1, "fewer": fewer}
    fields, run = [Asked("the number of micro-batches", least, unit="count")], one_f_one_b(p, m)
    return level_of(head, fields, {f"1F1B, {p} workers": run}, words, judge)


def best_with_overhead(head: Head, rng: Random) -> JudgedTask:
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
    runs = {k: simulate(schedule("1f1b", p, k), F / k + o, 2 * F / k + o) for k in options}
    best = min(run.makespan for run in runs.values())

    def judge(given: list[Any]) -> list[Target]:
        if given[0] not in options:
            raise ConfigError(f"the batch is cut into {listed(options)} parts; got {given[0]:g}")
        k, own = int(given[0]), runs[given[0]].makespan
        wrong = (
            ((k + p - 1) * T / k, "that is without the cost of an action"),
            ((k + p - 1) * (T / k + o), "a round has two actions, and each costs extra"),
            (k * (T / k + 2 * o), "that is the work of one worker, without any waiting"),
        )
        off = not math.isclose(given[1], own, rel_tol=1e-3)
        time = Asked(f"with {k} micro-batches the time", own, wrong)
        far = f"{k} is not the best number; others end the batch more than 5 % sooner"
        return [
            Target(WRONG, 0, int(off), 0, why=time.remark(given[1])),
            Target("seconds for the batch", 1.05 * best, own, best, least=True, why=far),
        ]

    tried = []
    for k in options:
        rounds = f"({k} + {p - 1}) x ({T}/{k} + 2 x {o:g}) = {k + p - 1} x {num(T / k + 2 * o)}"
        tried.append(f"m = {k}: {rounds} = {num(times[k])} s")
    fields = (
        Asked("the number of micro-batches", m, unit="count"),
        Asked("the time for the batch", runs[m].makespan),
    )
    words: dict[str, Any] = {"p": p, "q": p - 1, "F": F, "twice": 2 * F, "T": T, "o": o}
    words |= {"options": listed(options), "one": f"{p} x {num(T + 2 * o)} = {num(times[1])}"}
    words |= {"tried": "\n".join(tried), "m": m, "least": num(times[m]), "each": num(T / m + 2 * o)}
    words |= {"waits": num((p - 1) * (T / m + 2 * o))}
    return level_of(head, fields, {f"1F1B, {p} workers": runs[m]}, words, judge)


def one_slow_stage(head: Head, rng: Random) -> JudgedTask:
    """The end, the idle time of the slow worker and of another."""
    p, m, F = rng.choice((3, 4)), rng.randint(4, 8), rng.choice((1, 2))
    k, slow = rng.randrange(p), F * rng.choice((2, 3))
    forward = [slow if w == k else F for w in range(p)]
    run = simulate(schedule("1f1b", p, m), forward, [2 * f for f in forward])
    other = rng.choice([w for w in range(p) if w != k])
    # micro-batch 0 goes down and comes back while the slow worker does its forwards in advance
    behind, ahead, last = (p - 1 - k) * 3 * F, (p - 1 - k) * slow, k == p - 1
    down, up, inside = total([F] * k), total([2 * F] * k), max(0, behind - ahead)
    work, waits, fast = m * 3 * slow, 3 * F * k + inside, m * 3 * F
    end, waited = work + waits, f"it waits {behind} - {ahead} = {inside} s" if inside else "no wait"
    ends = "It begins at once, and nothing is to be done after its last backward"
    if k:
        ends = f"Before its first forward the others need {down} s, after its last backward {up} s"
    if not last:
        ends += f"; in between see whether a gradient is back when its first {p - k} forwards are "
        ends += "done"
    between = f"In between, the first backward needs {behind} s below it, and meanwhile it does "
    between += f"{ahead} s of forwards: {waited}"
    wrong = (
        (work, f"that is the work of worker {k + 1} alone"),
        ((m + p - 1) * 3 * slow, "that would be so if all were as slow"),
        ((m + p - 1) * 3 * F, "that would be so if all were as fast"),
    )
    fields = [Asked("the end", run.makespan, wrong)]
    for w in (k, other):
        mistakes = [(run.busy_per_device[w], f"that is how long worker {w + 1} works")]
        if w + 1 < p:  # counted from 0, this number is the next one's
            why = f"worker {w + 2} is idle so long; did you count workers from 0? Here from 1"
            mistakes.append((run.idle_per_device[w + 1], why))
        right = run.idle_per_device[w]
        fields.append(Asked(f"worker {w + 1}'s idle time", right, mistakes))
    words: dict[str, Any] = {"p": p, "m": m, "F": F, "k": k + 1, "slow": slow, "twice": 2 * slow}
    words |= {"pace": 2 * F, "other": other + 1, "ends": ends, "work": work, "down": down, "up": up}
    words |= {"between": "" if last else between, "waits": waits, "end": end, "fast": fast}
    words |= {"rest": end - fast}
    return level_of(head, fields, {f"1F1B, {p} workers, {m} micro-batches": run}, words)


class Gap(NamedTuple):
    """Seconds in which a worker, counted from 0, is idle."""

    worker: int
    start: float
    end: float
    before: int
    """The action that ends it, a row of the run; -1 at the end of the run."""


def gaps_of(run: Timeline, worker: int) -> list[Gap]:
    """Every gap of one worker, in time; the first may start at 0, the last end with the run.

    >>> gaps_of(simulate("naive", 2, 1), 0)
    [Gap(worker=0, start=1.0, end=4.0, before=1)]
    """
    rows = np.flatnonzero(run.device == worker).tolist()
    ends = [0.0, *run.end[rows].tolist()]
    starts = zip([*run.start[rows].tolist(), run.makespan], [*rows, -1], strict=True)
    found = (Gap(worker, a, *b) for a, b in zip(ends, starts, strict=True))
    return [gap for gap in found if gap.end - gap.start > _TINY]


def _cause(run: Timeline, at_once: Timeline, gap: Gap) -> tuple[str, str]:
    """(why the worker is idle in ``gap``, one of _CAUSES, or "" where several reasons share it; the
    words of the working).

    ``at_once``: the same run with transfers that take no time. A gap in the middle that stays there
    is a neighbour's who is slower; one that is gone was the way's.
    """
    mine, k = run.device == gap.worker, gap.before
    if gap.end <= run.start[mine & (run.kind == "B")].min():
        return "warm-up", "no backward done before it"
    if gap.start >= run.end[mine & (run.kind == "F")].max():
        return "drain", "no forward to come after it"
    maker = next(n for n in run.waits.uses[k] if n >= 0 and run.device[n] != gap.worker)
    late = run.end[maker] > gap.start + _TINY
    stays = at_once.start[k] - at_once.end[k - 1] > _TINY
    words = (
        f"then {run.kind[k]}{run.microbatch[k]}: worker {run.device[maker] + 1} finished it at "
        f"{num(run.end[maker])} s, and the gap began at {num(gap.start)} s; it was "
        f"{'not made yet' if late else 'on its way'}"
    )
    return ("imbalance" if stays else "transfer") if late == stays else "", words


def which_gap_is_which(head: Head, rng: Random) -> JudgedTask:
    """Five gaps of one run, each by its reason."""
    while True:
        latency, m = rng.choice((1, 2)), rng.randint(4, 7)
        forward = [latency * f for f in rng.choice(_UNEVEN)]
        order, p = schedule("1f1b", len(forward), m), len(forward)
        run, at_once = (simulate(order, forward, [2 * f for f in forward], s) for s in (latency, 0))
        why = {gap: _cause(run, at_once, gap) for w in range(p) for gap in gaps_of(run, w)}
        by_cause = [[gap for gap in why if why[gap][0] == cause] for cause in _CAUSES]
        if not all(by_cause):
            continue
        gaps = [rng.choice(found) for found in by_cause]
        if rest := [gap for found in by_cause for gap in found if gap not in gaps]:
            gaps.append(rng.choice(rest))
            rng.shuffle(gaps)
            break
    fields, shown, works, answers = [], [], [], []
    for letter, gap in zip("ABCDE", gaps, strict=True):
        (cause, because), who = why[gap], f"{letter} worker {gap.worker + 1}"
        fields.append(Asked(f"gap {letter}", cause, (), _CAUSES, letter))
        shown.append(f"{who}, {num(gap.start)} to {num(gap.end)} s")
        works.append(f"{who}, {num(gap.end - gap.start)} s, {because}: {cause}")
        answers.append(f"{letter} {cause}")
    words: dict[str, Any] = {"p": p, "m": m, "forward": listed(forward), "latency": latency}
    words |= {"shown": "; ".join(shown), "works": "\n".join(works), "answer": ", ".join(answers)}
    return level_of(head, fields, {f"1F1B, {p} workers, {m} micro-batches": run}, words)


@cache
def _behind(p: int, percent: int) -> list[int]:
    """All m whose utilisation is shown as so many percent, by trying."""
    return [m for m in range(1, 100) if round(100 * one_f_one_b(p, m).utilisation) == percent]


def which_microbatches(head: Head, rng: Random) -> JudgedTask:
    """The micro-batches behind three utilisations that were seen."""
    p = rng.randint(3, 8)
    seen = sorted(rng.sample([u for u in range(10, 90) if len(_behind(p, u)) == 1], 3))
    if not head[1]:
        p, seen = 4, [25, 57, 73]
    fields, runs, works, answers = [], {}, [], []
    for u in seen:
        (m,), x = _behind(p, u), u * (p - 1) / (100 - u)
        wrong = (
            (m + p - 1, "that counts the rounds, m + p - 1, and not only m"),
            (round(p * u / 100, 6), f"that is how many of the {p} work on average"),
        )
        fields.append(Asked(f"m at {u} %", m, wrong, "count"))
        runs[f"{p} workers, {u} % busy"] = one_f_one_b(p, m)
        n = round(x)
        answers.append(f"{n}")
        found = f"{n}/{n + p - 1} = {format_percent(n / (n + p - 1))}"
        turned = f"{u / 100:g} x {p - 1} / {(100 - u) / 100:g} = {x:.2f}"
        works.append(f"{u} %: {turned}, so m = {n}: {found}")
    words: dict[str, Any] = {"p": p, "q": p - 1, "seen": listed([f"{u} %" for u in seen])}
    words |= {"works": "\n".join(works), "answer": ", ".join(answers)}
    return level_of(head, fields, runs, words)
