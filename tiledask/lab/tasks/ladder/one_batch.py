"""Levels 1 to 6: one batch at a time; who does what, who waits for whom, and how long."""

from collections.abc import Sequence
from itertools import accumulate
from math import lcm
from random import Random
from typing import Any

from tiledask.lab.tasks.ladder.fields import IDLE, Asked, Head, level_of, listed, num, total
from tiledask.lab.tasks.task import JudgedTask
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_percent

__all__ = ["fill_the_timetable", "from_few_to_many", "idle_in_all", "idle_of_each", "idle_share"]
__all__ += ["who_waits_for_whom"]

_STEPS = ((2, 4), (2, 3), (2, 6), (2, 8), (3, 4), (3, 6), (4, 6), (4, 8))


def one_batch(forward: Sequence[float], backward: Sequence[float], sends: Any = 0) -> Timeline:
    """The simulated run of one batch through a worker for each stage."""
    return simulate(schedule("naive", len(forward), 1), forward, backward, latency=sends)


def idle_share(run: Timeline) -> Asked:
    """The idle share of all worker-time."""
    works = (run.utilisation, "that is the share in which they work")
    over = (run.bubble_overhead, "that is idle over work; asked is idle over all")
    return Asked("the idle share", run.bubble_fraction, (works, over), "share")


def fill_the_timetable(head: Head, rng: Random) -> JudgedTask:
    """What each worker does in each slot."""
    while True:
        p, times = rng.choice((3, 4)), rng.choice((1, 2))
        forward = [rng.choice((1, 2)) for _ in range(p)]
        backward = [times * f for f in forward]
        if sum(forward + backward) <= 18:
            break
    run, workers = one_batch(forward, backward), range(1, p + 1)
    slots = range(round(run.makespan))
    rows = [tuple(run.state(w, s + 0.5).replace("idle", IDLE) for s in slots) for w in range(p)]
    fields = [Asked(f"worker {w}", row, label=f"{w}") for w, row in enumerate(rows, 1)]
    waits = [(forward[:w], forward[w + 1 :] + backward[w + 1 :], backward[:w]) for w in range(p)]
    above, below, behind = (
        "; ".join(f"worker {w}: {total(each)}" for w, each in enumerate(part, 1) if each)
        for part in zip(*waits, strict=True)
    )
    words: dict[str, Any] = {"p": p, "workers": listed(workers), "back": listed(reversed(workers))}
    words |= {"forward": listed(forward), "times": ("as", "twice as")[times - 1]}
    words |= {"slots": len(slots), "down": total(forward), "up": sum(backward), "above": above}
    words |= {"below": below, "behind": behind, "answer": "; ".join(map(" ".join, rows))}
    return level_of(head, fields, {f"{p} workers, one batch": run}, words)


def who_waits_for_whom(head: Head, rng: Random) -> JudgedTask:
    """The number of the worker that each waits for, "works" or "done"."""
    p = rng.choice((3, 4, 5))
    forward = [rng.randint(1, 4) for _ in range(p)]
    down, up = sum(forward), 2 * sum(forward)
    moments = (rng.randrange(down) + 0.5, down + rng.randrange(up) + 0.5)
    run = one_batch(forward, [2 * f for f in forward])
    known = {f"{w}": f"{w}" for w in range(1, p + 1)}
    known |= {"works": "works?|working|computes|busy|[fb]0?"}
    known |= {"done": "done|none|nobody|nothing|finished|-"}
    took, fields, works, answers = [*forward, *(2 * f for f in forward[::-1])], [], [], []
    for t in moments:
        step = next(n for n, end in enumerate(accumulate(took)) if end > t)
        busy, forwards = (step, True) if step < p else (2 * p - 1 - step, False)
        after = [f"{w}" if forwards else "done" for w in range(busy + 1, p)]
        waits = [*(f"{w + 2}" for w in range(busy)), "works", *after]
        before = " Workers before it need the gradient from the next worker." * (busy > 0)
        needs = "need the activations from the worker before" if forwards else "are done"
        behind = f" Workers behind it {needs}." * (busy + 1 < p)
        ends = f"its {took[step]} s end at {total(took[: step + 1])} s."
        back = "forward" if forwards else "back"
        works.append(f"At {t:g} s worker {busy + 1} works, {back}: {ends}{before}{behind}")
        answers.append(", ".join(waits))
        for w in range(1, p + 1):
            why = f"worker {busy + 1} is the one at work, and worker {w} waits for a neighbour"
            wrong = [(f"{busy + 1}", why)] if waits[w - 1].isdigit() else []
            fields.append(Asked(f"worker {w} at {t:g} s", waits[w - 1], wrong, known))
    first, second = (f"{t:g} s" for t in moments)
    words: dict[str, Any] = {"p": p, "forward": listed(forward), "first": first, "second": second}
    words |= {"down": down, "works": "\n".join(works), "answer": "; ".join(answers)}
    return level_of(head, fields, {f"{p} workers, one batch": run}, words)


def idle_of_each(head: Head, rng: Random) -> JudgedTask:
    """Levels 3 and 4: the idle time of each worker with stages such as 3, 5 and 2; then with
    transfers that take time from one worker to the next."""
    p, transfers = rng.choice((3, 4)), head[0] == 4
    forward = [1] * p
    while len(set(forward)) == 1:  # not all alike
        forward = [rng.randint(1, 7) for _ in range(p)]
    sends = [rng.randint(1, 4) if transfers else 0 for _ in range(p - 1)]
    backward = [2 * f for f in forward]
    run = one_batch(forward, backward, sends)
    compute, way = 3 * sum(forward), sum(sends)
    end = compute + 2 * way
    fields, waits = [], []
    for w, f in enumerate(forward, 1):
        wrong = (
            (3 * f, f"that is how long worker {w} works"),
            (run.makespan, "that is how long the whole batch takes"),
            (compute - 3 * f, "that is without transfers"),
            (compute + way - 3 * f, "transfers are paid twice: there, and on the way back"),
            (sum(forward) - f, "that is its wait while the batch goes forward"),
            (2 * (sum(forward) - f), "that is its wait while the batch goes back"),
        )
        right = run.idle_per_device[w - 1]
        fields.append(Asked(f"worker {w}'s idle time", right, wrong, label=f"{w}"))
        works = f"Worker {w} works {f} + {2 * f} = {3 * f} s"
        waits.append(f"{works} and waits {end} - {3 * f} = {end - 3 * f} s")
    ways = [f"{c} s from worker {w} to {w + 1}" for w, c in enumerate(sends, 1)]
    words: dict[str, Any] = {"p": p, "forward": listed(forward), "down": total(forward)}
    words |= {"back": total(backward), "own": f"{forward[0]} + {backward[0]}", "ways": listed(ways)}
    words |= {"sent": total(sends), "way": way, "twice": 2 * way, "F": sum(forward)}
    words |= {"B": sum(backward), "end": end, "waits": "\n".join(waits)}
    words |= {"answer": ", ".join(f"{end - 3 * f} s" for f in forward)}
    runs = {f"{p} workers, one batch{', with transfers' * transfers}": run}
    return level_of(head, fields, runs, words)


def idle_in_all(head: Head, rng: Random) -> JudgedTask:
    """Total idle time: (p - 1) T, however the model is cut."""
    p = rng.randint(3, 6)
    forward = [rng.randint(1, 7) for _ in range(p)]
    T = 3 * sum(forward)
    run = one_batch(forward, [2 * f for f in forward])
    busy = (run.busy, "that is how long the workers work, all together")
    whole = (run.makespan * p, "that is all worker-time, work and waiting")
    fields = Asked("the idle time of all workers", run.idle, (busy, whole)), idle_share(run)
    runs, idle = {f"{p} workers, cut somewhere": run}, (p - 1) * T
    words: dict[str, Any] = {"p": p, "q": p - 1, "T": T, "idle": idle, "all": p * T}
    return level_of(head, fields, runs, words)


def from_few_to_many(head: Head, rng: Random) -> JudgedTask:
    """Utilisation, time and idle time when workers are added and nothing else changes."""
    p, q = rng.choice(_STEPS) if head[1] else _STEPS[0]
    whole = lcm(p, q) * rng.randint(1, 4)
    T, more = 3 * whole, (q - p) * 3 * whole
    few, many = (one_batch([whole / n] * n, [2 * whole / n] * n) for n in (p, q))
    idle = (many.bubble_fraction, "that is the idle share")
    at_once = (T / q, "that would need all of them to work at the same time")
    grown = (many.idle, f"that is all idle time with {q} workers")
    fields = (
        Asked(f"the utilisation with {p} workers", few.utilisation, unit="share"),
        Asked(f"the utilisation with {q} workers", many.utilisation, [idle], "share"),
        Asked(f"the time for a batch with {q} workers", many.makespan, [at_once]),
        Asked("the growth of the idle time", many.idle - few.idle, [grown]),
    )
    words: dict[str, Any] = {"p": p, "q": q, "whole": whole, "twice": 2 * whole, "T": T}
    words |= {"share": format_percent(1 / p), "less": format_percent(1 / q)}
    words |= {"wait": f"{p - 1} wait{'s' * (p == 2)}", "others": q - 1, "before": (p - 1) * T}
    words |= {"after": (q - 1) * T, "more": more, "times": num(more / T)}
    runs = {f"{n} workers, one batch": run for n, run in ((p, few), (q, many))}
    return level_of(head, fields, runs, words)
