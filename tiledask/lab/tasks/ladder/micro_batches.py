"""Levels 7 to 12: micro-batches; two triangles, a target, the best number, a slow stage, gaps."""

import math
from fractions import Fraction
from functools import cache
from random import Random
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.course.words import listed
from tiledask.lab.tasks.ladder.fields import Asked, Names
from tiledask.lab.tasks.result import WRONG, Target
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_percent

__all__ = ["best_with_overhead", "fewest_for_a_share", "one_slow_stage", "triangles"]
__all__ += ["which_gap_is_which", "which_microbatches"]

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


def triangles(rng: Random, seed: int) -> Names:
    """The end, the idle time of each worker and the idle share: (p - 1) (F + B) of it all."""
    name, p, m = rng.choice(("gpipe", "1f1b")), rng.randint(2, 5), rng.randint(2, 10)
    F, B = rng.choice(_TIMES)
    run, called = simulate(schedule(name, p, m), F, B), {"gpipe": "GPipe", "1f1b": "1F1B"}[name]
    q, both, T, in_turn = p - 1, F + B, m * (F + B), p * m * (F + B)
    ramp, first, last, ramp_more = q * both, q * F, q * B, p * both
    end, end_more, share = T + ramp, T + ramp_more, Fraction(ramp, ramp + T)
    return locals()


def fewest_for_a_share(rng: Random, seed: int) -> Names:
    """m for a target idle share."""
    p, percent, most = rng.randint(3, 9), rng.choice((10, 12, 15, 20, 25, 30, 35, 40)), 200
    share, wanted, q = Fraction(percent, 100), percent / 100, p - 1
    rounds, m = float(q / share), math.ceil(q / share) - q
    exact, n, left, fewer = rounds - q, m - 1, q / (m + q), q / (m - 1 + q)
    least = next(n for n in range(1, most) if one_f_one_b(p, n).bubble_fraction <= wanted + 1e-9)
    run = one_f_one_b(p, m)

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

    return locals()


def best_with_overhead(rng: Random, seed: int) -> Names:
    """The best m where every action costs something, however small it is."""
    options = (1, 2, 4, 8, 16, 32)
    while True:
        p, F, o = rng.randint(3, 6), rng.choice((8, 16, 24, 32)), rng.choice((0.25, 0.5, 1, 2))
        T, q, twice = 3 * F, p - 1, 2 * F
        rounds = {k: (k + q, T / k + 2 * o, (k + q) * (T / k + 2 * o)) for k in options}
        m = min(options, key=lambda k: rounds[k][2])
        least, second = sorted(seconds for _, _, seconds in rounds.values())[:2]
        if m not in (options[0], options[-1]) and second > 1.01 * least:
            break
    runs = {k: simulate(schedule("1f1b", p, k), F / k + o, 2 * F / k + o) for k in options}
    best, run, each = min(run.makespan for run in runs.values()), runs[m], rounds[m][1]
    waits = q * each

    def judge(given: list[Any]) -> list[Target]:
        if given[0] not in options:
            raise ConfigError(f"the batch is cut into {listed(options)} parts; got {given[0]:g}")
        k, own = int(given[0]), runs[given[0]].makespan
        wrong = (
            ((k + q) * T / k, "that is without the cost of an action"),
            ((k + q) * (T / k + o), "a round has two actions, and each costs extra"),
            (k * (T / k + 2 * o), "that is the work of one worker, without any waiting"),
        )
        off = not math.isclose(given[1], own, rel_tol=1e-3)
        time = Asked(f"with {k} micro-batches the time", own, wrong)
        far = f"{k} is not the best number; others end the batch more than 5 % sooner"
        return [
            Target(WRONG, 0, int(off), 0, why=time.remark(given[1])),
            Target("seconds for the batch", 1.05 * best, own, best, least=True, why=far),
        ]

    return locals()


def one_slow_stage(rng: Random, seed: int) -> Names:
    """The end, the idle time of the slow worker and of another."""
    p, m, F = rng.choice((3, 4)), rng.randint(4, 8), rng.choice((1, 2))
    k, slow = rng.randrange(p) + 1, F * rng.choice((2, 3))
    forward = [slow if w == k else F for w in range(1, p + 1)]
    run = simulate(schedule("1f1b", p, m), forward, [2 * f for f in forward])
    other = rng.choice([w for w in range(1, p + 1) if w != k])
    # micro-batch 0 goes down and comes back while the slow worker does its forwards in advance
    behind, before, below, ahead = (p - k) * 3 * F, (p - k) * slow, k < p, p - k + 1
    down, up, inside = [F] * (k - 1), [2 * F] * (k - 1), max(0, behind - before)
    waited = f"it waits {behind} - {before} = {inside} s" if inside else "no wait"
    work, waits, fast = m * 3 * slow, 3 * F * (k - 1) + inside, m * 3 * F
    end, twice, pace, rest = work + waits, 2 * slow, 2 * F, work + waits - fast
    all_slow, all_fast, idle = (m + p - 1) * 3 * slow, (m + p - 1) * 3 * F, run.idle_per_device
    rows = [  # counted from 0, the idle time of the next one is that of this number
        {"w": w, "next": w + 1, "busy": run.busy_per_device[w - 1], "idle": idle[w - 1]}
        | {"after": idle[w] if w < p else None}
        for w in (k, other)
    ]
    return locals()


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
        f"{run.end[maker]:.6g} s, and the gap began at {gap.start:.6g} s; it was "
        f"{'not made yet' if late else 'on its way'}"
    )
    return ("imbalance" if stays else "transfer") if late == stays else "", words


def which_gap_is_which(rng: Random, seed: int) -> Names:
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
    causes, rows, shown = _CAUSES, {}, []
    for letter, gap in zip("ABCDE", gaps, strict=True):
        (cause, because), w = why[gap], gap.worker + 1
        rows[letter] = {"w": w, "seconds": gap.end - gap.start, "because": because, "cause": cause}
        shown.append(f"{letter} worker {w}, {gap.start:.6g} to {gap.end:.6g} s")
    answer = ", ".join(f"{letter} {row['cause']}" for letter, row in rows.items())
    return locals()


@cache
def _behind(p: int, percent: int) -> list[int]:
    """All m whose utilisation is shown as so many percent, by trying."""
    return [m for m in range(1, 100) if round(100 * one_f_one_b(p, m).utilisation) == percent]


def which_microbatches(rng: Random, seed: int) -> Names:
    """The micro-batches behind three utilisations that were seen."""
    p = rng.randint(3, 8)
    seen = sorted(rng.sample([u for u in range(10, 90) if len(_behind(p, u)) == 1], 3))
    if not seed:
        p, seen = 4, [25, 57, 73]
    rows, q, shown = [], p - 1, [f"{u} %" for u in seen]
    for u in seen:
        (m,), x = _behind(p, u), u * q / (100 - u)
        n = round(x)
        rows.append({"u": u, "m": m, "x": x, "n": n, "rounds": n + q, "back": n / (n + q)}
                    | {"share": u / 100, "rest": (100 - u) / 100}
                    | {"counted": m + q, "work": round(p * u / 100, 6)})  # fmt: skip
    runs = {f"{p} workers, {row['u']} % busy": one_f_one_b(p, row["m"]) for row in rows}
    answer = ", ".join(f"{row['n']}" for row in rows)
    return locals()
