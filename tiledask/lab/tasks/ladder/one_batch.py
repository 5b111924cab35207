"""Levels 1 to 6: one batch at a time; who does what, who waits for whom, and how long."""

from collections.abc import Sequence
from itertools import accumulate
from math import lcm
from random import Random
from typing import Any

from tiledask.lab.course.words import total
from tiledask.lab.tasks.ladder.fields import IDLE, Names
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["fill_the_timetable", "from_few_to_many", "idle_in_all", "idle_of_each"]
__all__ += ["who_waits_for_whom"]

_STEPS = ((2, 4), (2, 3), (2, 6), (2, 8), (3, 4), (3, 6), (4, 6), (4, 8))


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
    run, workers, twice, up = (
        one_batch(forward, backward),
        range(1, p + 1),
        times == 2,
        sum(backward),
    )
    slots, back = round(run.makespan), workers[::-1]
    rows = [
        [run.state(w, slot + 0.5).replace("idle", IDLE) for slot in range(slots)] for w in range(p)
    ]
    waits = [(forward[:w], forward[w + 1 :] + backward[w + 1 :], backward[:w]) for w in range(p)]
    above, below, behind = (
        "; ".join(f"worker {w}: {total(each)}" for w, each in enumerate(part, 1) if each)
        for part in zip(*waits, strict=True)
    )
    answer = "; ".join(map(" ".join, rows))
    return locals()


def who_waits_for_whom(rng: Random, seed: int) -> Names:
    """The number of the worker that each waits for, "works" or "done"."""
    p = rng.choice((3, 4, 5))
    forward = [rng.randint(1, 4) for _ in range(p)]
    down, up = sum(forward), 2 * sum(forward)
    moments = (rng.randrange(down) + 0.5, down + rng.randrange(up) + 0.5)
    run = one_batch(forward, [2 * f for f in forward])
    known = {f"{w}": f"{w}" for w in range(1, p + 1)}
    known |= {"works": "works?|working|computes|busy|[fb]0?"}
    known |= {"done": "done|none|nobody|nothing|finished|-"}
    took, asked, works, answers = [*forward, *(2 * f for f in forward[::-1])], [], [], []
    for at in moments:
        step = next(n for n, end in enumerate(accumulate(took)) if end > at)
        busy, forwards = (step + 1, True) if step < p else (2 * p - step, False)
        after = [f"{w}" if forwards else "done" for w in range(busy, p)]
        waits = [*(f"{w + 1}" for w in range(1, busy)), "works", *after]
        needs = "need the activations from the worker before" if forwards else "are done"
        before, behind, ends = busy > 1, busy < p, took[: step + 1]
        works.append({"at": at, "busy": busy, "took": took[step], "ends": ends, "needs": needs}
                     | {"forwards": forwards, "before": before, "behind": behind})  # fmt: skip
        answers.append(", ".join(waits))
        for w, wait in enumerate(waits, 1):
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
    end = compute + twice
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
    ways = [f"{c} s from worker {w} to {w + 1}" for w, c in enumerate(sends, 1)]
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
    whole = lcm(p, q) * rng.randint(1, 4)
    T, twice, share, less, at_once = 3 * whole, 2 * whole, 1 / p, 1 / q, 3 * whole / q
    few, many = (one_batch([whole / n] * n, [2 * whole / n] * n) for n in (p, q))
    grown, wait, others = many.idle - few.idle, f"{p - 1} wait{'s' * (p == 2)}", q - 1
    before, after, more, times = (p - 1) * T, (q - 1) * T, (q - p) * T, q - p
    return locals()
