"""The idle-time ladder: twelve levels of one question, how long does who wait, with fresh numbers.

    task = idle_level(3, seed=7)    # a JudgedTask
    task.check("21 s, 15 s, 24 s")  # stars; who is off is told where, never what is right
    task.hint()                     # three, from a nudge to nearly the way
    task.working()                  # the arithmetic, line by line

The simulator says what is right; the working is worked out without it, and a test holds that both
agree. Its texts and what is asked for are in data/ladder.json.

levels 1 to 6    one batch: who does what, who waits, idle time in seconds
levels 7 to 12   how many micro-batches; a slow stage; which gap is which
fields.py        what is filled in, who judges it
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, partial
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.course.words import listed, total
from tiledask.lab.tasks.fields import IDLE, Asked, Names, level_of
from tiledask.lab.tasks.result import WRONG, Target
from tiledask.lab.tasks.task import JudgedTask
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_percent
from tiledask.plan.whole import is_whole, whole_number

__all__ = ["LEVELS", "idle_level"]

_TIMES = ((1, 1), (1, 2), (2, 2), (2, 4), (2, 3), (1, 3), (3, 6))
_TINY = 1e-9
"""Seconds: rounding of sums."""
_CAUSES = {
    "not yet filled": "warm.?(ing.?)?up|ramp.?up|not.?(yet.?)?filled|fill(ing)?",
    "waits for a transfer": "transfers?|wait.*transfer|communication|latency|send(ing)?",
    "waits for other stages": "wait.*stages?|imbalanced?|unbalanced|uneven|slow stage",
    "draining": "drain(ing|ed)?|cool.?down|ramp.?down",
}
"""Why a worker is idle -> what else people call it."""
_UNEVEN = (
    *((2, 1, 2), (3, 2, 3), (1, 2, 1, 2), (2, 1, 2, 1), (2, 2, 1, 2), (2, 3, 2, 3)),
    *((3, 2, 1, 2), (3, 2, 1, 3), (3, 2, 3, 1), (3, 2, 3, 2), (3, 3, 2, 3)),
)
"""Forwards, over the time of a transfer, that often leave gaps of all kinds."""
_STEPS = ((2, 4), (2, 3), (2, 6), (2, 8), (3, 4), (3, 6), (4, 6), (4, 8))


# -- one batch at a time ---------------------------------------------------------------------------


def one_batch(forward: Sequence[float], backward: Sequence[float], sends: Any = 0) -> Timeline:
    """The simulated run of one batch through a worker for each stage."""
    return simulate(schedule("naive", len(forward), 1), forward, backward, latency=sends)


def fill_the_timetable(rng: Random, seed: int) -> Names:
    """What each worker does in each slot."""
    while True:
        p, times = rng.choice((3, 4)), rng.choice((1, 2))
        forward = [rng.choice((1, 2)) for _ in range(p)]
        backward = [times * f for f in forward]
        if sum(forward + backward) <= 18:
            break
    run, workers, twice, up = one_batch(forward, backward), range(p), times == 2, sum(backward)
    slots, back, last = round(run.makespan), workers[::-1], p - 1
    rows = [
        [run.state(w, slot + 0.5).replace("idle", IDLE) for slot in range(slots)] for w in range(p)
    ]
    waits = [(forward[:w], forward[w + 1 :] + backward[w + 1 :], backward[:w]) for w in range(p)]
    above, below, behind = (
        "; ".join(f"worker {w}: {total(each)}" for w, each in enumerate(part) if each)
        for part in zip(*waits, strict=True)
    )
    answer = "; ".join(map(" ".join, rows))
    return locals()


def who_waits_for_whom(rng: Random, seed: int) -> Names:
    """The number of the worker that each waits for, "works" or "done"."""
    p = rng.choice((3, 4, 5))
    forward = [rng.randint(1, 4) for _ in range(p)]
    down, up, last = sum(forward), 2 * sum(forward), p - 1
    moments = (rng.randrange(down) + 0.5, down + rng.randrange(up) + 0.5)
    run = one_batch(forward, [2 * f for f in forward])
    known = {f"{w}": f"{w}" for w in range(p)}
    known |= {"works": "works?|working|computes|busy|[fb]0?"}
    known |= {"done": "done|none|nobody|nothing|finished|-"}
    took, asked, works, answers = [*forward, *(2 * f for f in forward[::-1])], [], [], []
    for at in moments:
        step = next(n for n, end in enumerate(accumulate(took)) if end > at)
        busy, forwards = (step, True) if step < p else (p + last - step, False)
        after = [f"{w}" if forwards else "done" for w in range(busy, last)]
        waits = [*(f"{w + 1}" for w in range(busy)), "works", *after]
        needs = "need the activations from the worker before" if forwards else "are done"
        before, behind, ends = busy > 0, busy < last, took[: step + 1]
        works.append({"at": at, "busy": busy, "took": took[step], "ends": ends, "needs": needs}
                     | {"forwards": forwards, "before": before, "behind": behind})  # fmt: skip
        answers.append(", ".join(waits))
        for w, wait in enumerate(waits):
            asked.append((w, at, wait, f"{busy}" if wait.isdigit() else None))
    answer = "; ".join(answers)
    return locals()


def idle_of_each(rng: Random, seed: int, transfers: bool) -> Names:
    """Levels 3 and 4: the idle time of each worker with stages such as 3, 5 and 2; then with
    transfers that take time from one worker to the next."""
    p = rng.choice((3, 4))
    forward = [1] * p
    while len(set(forward)) == 1:  # not all alike
        forward = [rng.randint(1, 7) for _ in range(p)]
    sends = [rng.randint(1, 4) if transfers else 0 for _ in range(p - 1)]
    backward, F, B, way = [2 * f for f in forward], sum(forward), 2 * sum(forward), sum(sends)
    run, compute, twice = one_batch(forward, backward, sends), F + B, 2 * way
    end, last = compute + twice, p - 1
    rows = [
        {"f": f, "b": 2 * f, "own": 3 * f, "rest": end - 3 * f, "idle": idle}
        | {
            "still": compute - 3 * f,
            "once": compute + way - 3 * f,
            "there": F - f,
            "home": B - 2 * f,
        }
        for f, idle in zip(forward, run.idle_per_device, strict=True)
    ]
    ways = [f"{c} s from worker {w} to {w + 1}" for w, c in enumerate(sends)]
    answer = ", ".join(f"{row['rest']} s" for row in rows)
    return locals()


def idle_in_all(rng: Random, seed: int) -> Names:
    """Total idle time: (p - 1) T, however the model is cut."""
    p = rng.randint(3, 6)
    forward = [rng.randint(1, 7) for _ in range(p)]
    T, q = 3 * sum(forward), p - 1
    run, idle, whole = one_batch(forward, [2 * f for f in forward]), q * T, p * T
    return locals()


def from_few_to_many(rng: Random, seed: int) -> Names:
    """Utilisation, time and idle time when workers are added and nothing else changes."""
    p, q = rng.choice(_STEPS) if seed else _STEPS[0]
    whole = math.lcm(p, q) * rng.randint(1, 4)
    T, twice, share, less, at_once = 3 * whole, 2 * whole, 1 / p, 1 / q, 3 * whole / q
    few, many = (one_batch([whole / n] * n, [2 * whole / n] * n) for n in (p, q))
    grown, wait, others = many.idle - few.idle, f"{p - 1} wait{'s' * (p == 2)}", q - 1
    before, after, more, times = (p - 1) * T, (q - 1) * T, (q - p) * T, q - p
    return locals()


# -- micro-batches ---------------------------------------------------------------------------------


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
    k, slow = rng.randrange(p), F * rng.choice((2, 3))
    forward = [slow if w == k else F for w in range(p)]
    run = simulate(schedule("1f1b", p, m), forward, [2 * f for f in forward])
    other = rng.choice([w for w in range(p) if w != k])
    # micro-batch 0 goes down and comes back while the slow worker does its forwards in advance
    ahead, below = p - k, k < p - 1
    behind, before = (ahead - 1) * 3 * F, (ahead - 1) * slow
    down, up, inside = [F] * k, [2 * F] * k, max(0, behind - before)
    waited = f"it waits {behind} - {before} = {inside} s" if inside else "no wait"
    work, waits, fast = m * 3 * slow, 3 * F * k + inside, m * 3 * F
    end, twice, pace, rest = work + waits, 2 * slow, 2 * F, work + waits - fast
    all_slow, all_fast, idle = (m + p - 1) * 3 * slow, (m + p - 1) * 3 * F, run.idle_per_device
    rows: list[dict[str, Any]] = [  # counted from 1, this number is that of the one before
        {"w": w, "previous": w - 1, "busy": run.busy_per_device[w], "idle": idle[w]}
        | {"above": idle[w - 1] if w else None}
        for w in (k, other)
    ]
    return locals()


class Gap(NamedTuple):
    """Seconds in which a worker is idle."""

    worker: int
    start: float
    end: float
    before: int
    """The action that ends it, a row of the run; -1 at the end of the run."""


def gaps_of(run: Timeline, worker: int) -> list[Gap]:
    """Every gap of one worker, in time; the first may start at 0, the last end with the run.

    >>> gaps_of(simulate(schedule("naive", 2, 1)), 0)
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
        return "not yet filled", "no backward done before it"
    if gap.start >= run.end[mine & (run.kind == "F")].max():
        return "draining", "no forward to come after it"
    assert run.schedule is not None
    maker = run.schedule.maker[k]
    late = run.end[maker] > gap.start + _TINY
    stays = at_once.start[k] - at_once.end[k - 1] > _TINY
    words = (
        f"then {run.kind[k]}{run.microbatch[k]}: worker {run.device[maker]} finished it at "
        f"{run.end[maker]:.6g} s, and the gap began at {gap.start:.6g} s; it was "
        f"{'not made yet' if late else 'on its way'}"
    )
    cause = "waits for other stages" if stays else "waits for a transfer"
    return cause if late == stays else "", words


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
        (cause, because), w = why[gap], gap.worker
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


# -- all of them -----------------------------------------------------------------------------------

LEVELS: tuple[Callable[[Random, int], Names], ...] = (
    fill_the_timetable,
    who_waits_for_whom,
    partial(idle_of_each, transfers=False),
    partial(idle_of_each, transfers=True),
    idle_in_all,
    from_few_to_many,
    triangles,
    fewest_for_a_share,
    best_with_overhead,
    one_slow_stage,
    which_gap_is_which,
    which_microbatches,
)
"""What draws the numbers of each level, 1 first, and does its sums."""


def idle_level(level: int, seed: int = 0) -> JudgedTask:
    """A level of the idle-time ladder, 1 to 12, with the numbers of ``seed``.

    ConfigError for another level. Equal seeds give equal numbers on every machine.

    >>> idle_level(3, seed=7).check("9 s").reason[:43]
    'Not an answer: 3 are asked for: the seconds'
    """
    if not is_whole(level, 1) or level > len(LEVELS):
        raise ConfigError(f"the idle-time ladder has levels 1 to {len(LEVELS)}, got {level!r}")
    seed = whole_number("seed", seed, 0, 10**9 - 1)
    return level_of(level, seed, LEVELS[level - 1](Random(f"{level}/{seed}"), seed))
