"""Levels 1 to 6: one batch at a time; who does what, who waits for whom, and how long."""

from collections.abc import Sequence
from itertools import accumulate
from math import lcm
from random import Random
from typing import Any

from tiledask.lab.idle_ladder.level import IDLE, Asked, IdleLevel, Run, level_of, listed, num, total
from tiledask.lab.judging.reading import SHARE
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
    return Asked("the idle share", run.bubble_fraction, (works, over), SHARE)


def fill_the_timetable(head: dict[str, Any], rng: Random) -> IdleLevel:
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
    page = f"""
    Q: {p} workers hold a part of a model each. One batch goes forward through workers
       {listed(workers)} (F0), then its gradient comes back through {listed(reversed(workers))}
       (B0); each starts when the one before is done. F0 takes them {listed(forward)} slots, B0
       {("as", "twice as")[times - 1]} long on each. For every worker, say what it does in each
       of the {len(slots)} slots. Workers and slots count from 1; the batch is number 0.
    A: a line (or a part between ;) per worker and a word per slot, F0, B0 or a dot for idle,
       for example 'F0 . . B0; . F0 B0 .' for 2 workers and 4 slots; 3x. is three dots
    H: In every slot exactly one worker has the batch. Where is it first, and where next?
    H: Write the forwards as stairs down from worker 1: each begins in the slot after the last
       one of the worker above. Then the stairs up, from the last worker.
    H: The forwards fill the first {total(forward)} slots, the backwards the other
       {sum(backward)}. Worker {p} has its B0 right after its F0; worker 1 begins and ends.
    W: Slots of waiting for the forwards above: {above}
    W: Slots of waiting while the batch is below: {below}
    W: Slots of waiting for the backwards above: {behind}
    W: Answer: {"; ".join(map(" ".join, rows))}
    """
    return level_of(head, page, fields, Run(f"{p} workers, one batch", run))


def who_waits_for_whom(head: dict[str, Any], rng: Random) -> IdleLevel:
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
    page = f"""
    Q: {p} workers, counted from 1, hold a stage each. One batch goes forward through workers 1
       to {p} in {listed(forward)} s, then back through {p} to 1, twice as long on each;
       transfers take nothing. At {first}, and at {second}, for whom does each worker wait?
       Write the number of the worker whose result it needs next, 'works' if it works then,
       'done' if it has nothing left to do.
    A: {p} words for {first}, then {p} for {second}; for 2 workers 'works, 1; 2, works'
    H: One worker has the batch. All the others wait, each for a neighbour or for nothing.
    H: A worker that has done its forward needs the gradient from the next worker; one that has
       done nothing yet needs the activations from the worker before; one that has done its
       backward needs nothing.
    H: The forwards end one after the other, the last after {sum(forward)} s; then come the
       backwards, from worker {p} up. Find who is at work at {first} and at {second}.
    W: {works[0]}
    W: {works[1]}
    W: Answer: {"; ".join(answers)}
    """
    return level_of(head, page, fields, Run(f"{p} workers, one batch", run))


def idle_of_each(head: dict[str, Any], rng: Random) -> IdleLevel:
    """Levels 3 and 4: the idle time of each worker with stages such as 3, 5 and 2; then with
    transfers that take time from one worker to the next."""
    p, transfers = rng.choice((3, 4)), head["level"] == 4
    forward = [1] * p
    while len(set(forward)) == 1:  # not all alike
        forward = [rng.randint(1, 7) for _ in range(p)]
    sends = [rng.randint(1, 4) if transfers else 0 for _ in range(p - 1)]
    backward = [2 * f for f in forward]
    run = one_batch(forward, backward, sends)
    compute, way = 3 * sum(forward), sum(sends)
    end = compute + 2 * way
    fields, waits = [], ""
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
        waits += f"\nW: Worker {w} works {f} + {2 * f} = {3 * f} s and waits {end} - {3 * f} = "
        waits += f"{end - 3 * f} s"
    ways = listed([f"{c} s from worker {w} to {w + 1}" for w, c in enumerate(sends, 1)])
    moves = f"A transfer takes {ways}, and as long on the way back."
    page = f"""
    Q: {p} workers, counted from 1, hold stages of {listed(forward)} s forward, and twice that
       back. One batch goes forward through all, then back.
       {moves if transfers else "Transfers take nothing."} How long is each worker idle, from
       the start of the batch to its end? {"Waiting for a transfer is idle time too." * transfers}
    A: the seconds of workers 1 to {p}, for example '10 s, 8 s, 20 s' for 3
    H: Only one works at a time: whoever works, all the others wait.
       {"During a transfer nobody works at all." * transfers}
    H: So a worker waits for everything that is not its own work. How long does the whole batch
       take, forward and back{", with all the ways there and back" * transfers}?
    H: The batch takes {total(forward)} s forward and twice that back.
       {f"The ways add {total(sends)} s, and once more on the way back." * transfers}
       Take away what a worker does itself: worker 1 works {forward[0]} + {backward[0]} s.
    W: The batch takes {total(forward)} s forward and {total(backward)} s back
    W: {f"The ways take {total(sends)} s, there and back 2 x {way} = {2 * way} s" * transfers}
    W: One works at a time, so it ends after
       {sum(forward)} + {sum(backward)}{f" + {2 * way}" * transfers} = {end} s {waits}
    W: Answer: {", ".join(f"{end - 3 * f} s" for f in forward)}
    """
    facts = f"{p} workers, one batch{', with transfers' * transfers}"
    return level_of(head, page, fields, Run(facts, run))


def idle_in_all(head: dict[str, Any], rng: Random) -> IdleLevel:
    """Total idle time: (p - 1) T, however the model is cut."""
    p = rng.randint(3, 6)
    forward = [rng.randint(1, 7) for _ in range(p)]
    T = 3 * sum(forward)
    run = one_batch(forward, [2 * f for f in forward])
    busy = (run.busy, "that is how long the workers work, all together")
    whole = (run.makespan * p, "that is all worker-time, work and waiting")
    fields = Asked("the idle time of all workers", run.idle, (busy, whole)), idle_share(run)
    page = f"""
    Q: A batch takes {T} s on one worker, forward and back. The model is cut over {p} workers,
       layer-wise; nobody tells you where, and the stages are uneven. Transfers take nothing,
       and one batch is under way at a time. How many seconds are the workers idle, all
       together, and which share of all worker-time is that?
    A: the seconds of all workers together and the share, for example '48 s, 80 %'
    H: Does the cut change how long the batch takes? Does it change how many work at a time?
    H: At every moment one of the {p} works. How many wait, and for how long?
    H: The batch still takes T = {T} s, and p - 1 workers wait all the time: (p - 1) T, of p T
       in all.
    W: One after the other, cut anywhere, the stages take T = {T} s
    W: One works, {p} - 1 = {p - 1} wait: {p - 1} x {T} = {(p - 1) * T} s
    W: All worker-time is {p} x {T} = {p * T} s: {(p - 1) * T}/{p * T} = {p - 1}/{p}
    W: Answer: {(p - 1) * T} s, {p - 1}/{p}
    """
    return level_of(head, page, fields, Run(f"{p} workers, cut somewhere", run))


def from_few_to_many(head: dict[str, Any], rng: Random) -> IdleLevel:
    """Utilisation, time and idle time when workers are added and nothing else changes."""
    p, q = rng.choice(_STEPS) if head["seed"] else _STEPS[0]
    whole = lcm(p, q) * rng.randint(1, 4)
    T, more = 3 * whole, (q - p) * 3 * whole
    few, many = (one_batch([whole / n] * n, [2 * whole / n] * n) for n in (p, q))
    idle = (many.bubble_fraction, "that is the idle share")
    at_once = (T / q, "that would need all of them to work at the same time")
    grown = (many.idle, f"that is all idle time with {q} workers")
    fields = (
        Asked(f"the utilisation with {p} workers", few.utilisation, unit=SHARE),
        Asked(f"the utilisation with {q} workers", many.utilisation, [idle], SHARE),
        Asked(f"the time for a batch with {q} workers", many.makespan, [at_once]),
        Asked("the growth of the idle time", many.idle - few.idle, [grown]),
    )
    page = f"""
    Q: A model takes {whole} s forward and {2 * whole} s back for a batch. It is cut evenly over
       {p} workers, then over {q}, layer-wise, one batch at a time; transfers take nothing. Give
       four numbers: the utilisation (work over all worker-time) with {p} workers and with {q},
       the seconds for a batch with {q}, and by how many seconds the idle time of all workers
       together grows.
    A: two shares and two numbers of seconds, for example '80 %, 0.4, 10 s, 30 s'
    H: Half the layers on each worker: is anything done sooner?
    H: One worker works at a time, whether there are few or many. So what share of them is at
       work, and does the batch take longer or shorter than on one?
    H: The batch takes {whole} + {2 * whole} s in either case. With p workers the share at work
       is 1/p, and p - 1 workers wait all the time.
    W: The batch takes {whole} + {2 * whole} = {T} s, with {p} workers and with {q}
    W: One of {p} works: 1/{p} = {format_percent(1 / p)}; one of {q}: 1/{q} =
       {format_percent(1 / q)}
    W: With {p} workers {p - 1} wait{"s" * (p == 2)} for {T} s: {(p - 1) * T} s
    W: With {q} workers {q - 1} wait for {T} s: {(q - 1) * T} s
    W: It grows by {(q - 1) * T} - {(p - 1) * T} = {more} s, {num(more / T)} x {T}
    W: Answer: 1/{p}, 1/{q}, {T} s, {more} s
    """
    runs = (Run(f"{n} workers, one batch", run) for n, run in ((p, few), (q, many)))
    return level_of(head, page, fields, *runs)
