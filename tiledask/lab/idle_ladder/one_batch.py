"""Levels 1 to 6: one batch at a time; who does what, who waits for whom, and how long."""

from collections.abc import Sequence
from itertools import accumulate
from math import lcm
from random import Random

from tiledask.lab.idle_ladder.arithmetic import listed, num, plus, total
from tiledask.lab.idle_ladder.level import IdleLevel, Run
from tiledask.lab.idle_ladder.sheets.names import Name, NameSheet
from tiledask.lab.idle_ladder.sheets.numbers import Asked, NumberSheet
from tiledask.lab.idle_ladder.sheets.timetable import IDLE, Timetable
from tiledask.lab.judging.reading import SHARE
from tiledask.plan.pipelines.needs import needs
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.units import format_percent

__all__ = [
    "fill_the_timetable",
    "from_few_to_many",
    "idle_in_all",
    "idle_with_transfers",
    "uneven_stages",
    "who_waits_for_whom",
]


def fill_the_timetable(head: dict, rng: Random) -> IdleLevel:
    """What each worker does in each slot."""
    while True:
        p, times = rng.choice((3, 4)), rng.choice((1, 2))
        forward = [rng.choice((1, 2)) for _ in range(p)]
        backward = [times * f for f in forward]
        if sum(forward + backward) <= 18:
            break
    run = simulate(schedule("naive", p, 1), forward, backward)
    sheet = Timetable(run)
    rows, before, between, after = [], [], [], []
    for w, (f, b) in enumerate(zip(forward, backward, strict=True)):
        down, up, below = forward[:w], backward[:w], [*forward[w + 1 :], *backward[w + 1 :]]
        before.append(f"worker {w + 1}: {total(down)}")
        between.append(f"worker {w + 1}: {total(below)}")
        after.append(f"worker {w + 1}: {total(up)}")
        first, second, third = ([IDLE] * sum(each) for each in (down, below, up))
        rows.append(" ".join([*first, *["F0"] * f, *second, *["B0"] * b, *third]))
    lines = (
        f"Slots of waiting for the forwards above: {'; '.join(before[1:])}",
        f"Slots of waiting while the batch is below: {'; '.join(between[:-1])}",
        f"Slots of waiting for the backwards above: {'; '.join(after[1:])}",
        f"Answer: {'; '.join(rows)}",
    )
    workers = range(1, p + 1)
    return IdleLevel(
        **head,
        question=(
            f"{p} workers hold a part of a model each. One batch goes forward through workers "
            f"{listed(workers)} (F0), then its gradient comes back through "
            f"{listed(reversed(workers))} (B0); each starts when the one before is done. F0 takes "
            f"them {listed(forward)} slots, B0 {'as long' if times == 1 else 'twice as long'} on "
            f"each. For every worker, say what it does in each of the {sheet.slots} slots. Workers "
            f"and slots count from 1; the batch is number 0."
        ),
        form=(
            "a line (or a part between ;) per worker and a word per slot, F0, B0 or a dot for "
            "idle, for example 'F0 . . B0; . F0 B0 .' for 2 workers and 4 slots; 3x. is three dots"
        ),
        hints=(
            "In every slot exactly one worker has the batch. Where is it first, and where next?",
            "Write the forwards as stairs down from worker 1: each begins in the slot after the "
            "last one of the worker above. Then the stairs up, from the last worker.",
            f"The forwards fill the first {total(forward)} slots, the backwards the other "
            f"{sum(backward)}. Worker {p} has its B0 right after its F0; worker 1 begins and ends.",
        ),
        sheet=sheet,
        runs=(Run(f"{p} workers, one batch", run),),
        lines=lines,
    )


_EXAMPLE = "works, 1; 2, works"


def who_waits_for_whom(head: dict, rng: Random) -> IdleLevel:
    """The number of the worker that each waits for, "works" or "done"."""
    p = rng.choice((3, 4, 5))
    forward = [rng.randint(1, 4) for _ in range(p)]
    backward = [2 * f for f in forward]
    down, up = sum(forward), sum(backward)
    moments = (rng.randrange(down) + 0.5, down + rng.randrange(up) + 0.5)
    order = schedule("naive", p, 1)
    run = simulate(order, forward, backward)
    lines = [_line(forward, backward, t) for t in moments]
    answer = "; ".join(", ".join(_around(*_at(forward, backward, t), p)) for t in moments)
    first, second = (f"{t:g} s" for t in moments)
    return IdleLevel(
        **head,
        question=(
            f"{p} workers, counted from 1, hold a stage each. One batch goes forward through "
            f"workers 1 to {p} in {listed(forward)} s, then back through {p} to 1, twice as long "
            f"on each; transfers take nothing. At {first}, and at {second}, for whom does each "
            f"worker wait? Write the number of the worker whose result it needs next, 'works' if "
            f"it works then, 'done' if it has nothing left to do."
        ),
        form=f"{p} words for {first}, then {p} for {second}; for 2 workers '{_EXAMPLE}'",
        hints=(
            "One worker has the batch. All the others wait, each for a neighbour or for nothing.",
            "A worker that has done its forward needs the gradient from the next worker; one that "
            "has done nothing yet needs the activations from the worker before; one that has done "
            "its backward needs nothing.",
            f"The forwards end one after the other, the last after {plus(forward)} s; then come "
            f"the backwards, from worker {p} up. Find who is at work at {first} and at {second}.",
        ),
        sheet=NameSheet(
            tuple(_asked(order, run, w, t) for t in moments for w in range(p)),
            {
                **{f"{w}": () for w in range(1, p + 1)},
                "works": ("work", "working", "computes", "busy", "f0?", "b0?"),
                "done": ("none", "nobody", "nothing", "finished", "-"),
            },
            _EXAMPLE,
        ),
        runs=(Run(f"{p} workers, one batch", run),),
        lines=(*lines, f"Answer: {answer}"),
    )


def _asked(order: Schedule, run: Timeline, worker: int, t: float) -> Name:
    """What is right, by the simulator and by what the next action needs."""
    states = [run.state(w, t) for w in range(run.devices)]
    busy = next(w for w, state in enumerate(states) if state != "idle")
    to_come = [
        f"{kind}{i}"
        for device, kind, i, start in zip(
            run.device, run.kind, run.microbatch, run.start, strict=True
        )
        if device == worker and start > t
    ]
    waits = needs(order)
    needed = [
        order.place[n.stage] + 1
        for a in order.orders[worker]
        if to_come and f"{a.kind}{a.microbatch}" == to_come[0]
        for n in waits[a]
        if order.place[n.stage] != worker
    ]
    right = "works" if worker == busy else f"{needed[0]}" if needed else "done"
    why = f"worker {busy + 1} is the one at work, and worker {worker + 1} waits for a neighbour"
    mistakes = () if worker == busy or not needed else ((f"{busy + 1}", why),)
    return Name(f"worker {worker + 1} at {t:g} s", right, mistakes)


def _at(forward: Sequence[int], backward: Sequence[int], t: float) -> tuple[int, bool]:
    """(who works, counted from 0; whether forward), by adding up."""
    steps = [*((w, True, f) for w, f in enumerate(forward))]
    steps += [(w, False, b) for w, b in reversed(list(enumerate(backward)))]
    ends = accumulate(seconds for _, _, seconds in steps)
    return next(step[:2] for step, end in zip(steps, ends, strict=True) if end > t)


def _around(busy: int, forwards: bool, p: int) -> list[str]:
    """For whom each worker waits while one works."""
    before = [f"{w + 2}" for w in range(busy)]
    behind = [f"{w}" if forwards else "done" for w in range(busy + 1, p)]
    return [*before, "works", *behind]


def _line(forward: Sequence[int], backward: Sequence[int], t: float) -> str:
    busy, forwards = _at(forward, backward, t)
    gone = forward[: busy + 1] if forwards else [*forward, *backward[:busy:-1], backward[busy]]
    words = (
        f"At {t:g} s worker {busy + 1} works, {'forward' if forwards else 'back'}: its "
        f"{gone[-1]} s end at {total(gone)} s. "
    )
    if busy:
        words += "Workers before it need the gradient from the next worker. "
    if busy + 1 < len(forward):
        behind = "need the activations from the worker before" if forwards else "are done"
        words += f"Workers behind it {behind}."
    return words.strip()


def uneven_stages(head: dict, rng: Random) -> IdleLevel:
    """The idle time of each worker with stages such as 3, 5 and 2."""
    return _idle_of_each(head, rng, transfers=False)


def idle_with_transfers(head: dict, rng: Random) -> IdleLevel:
    """The same, with transfers that take time from one worker to the next."""
    return _idle_of_each(head, rng, transfers=True)


def _idle_of_each(head: dict, rng: Random, transfers: bool) -> IdleLevel:
    p = rng.choice((3, 4))
    forward = [1] * p
    while len(set(forward)) == 1:  # not all alike
        forward = [rng.randint(1, 7) for _ in range(p)]
    sends = [rng.randint(1, 4) if transfers else 0 for _ in range(p - 1)]
    backward = [2 * f for f in forward]
    works = [f + b for f, b in zip(forward, backward, strict=True)]
    run = simulate(schedule("naive", p, 1), forward, backward, latency=sends)
    compute, way = sum(works), sum(sends)
    end = compute + 2 * way
    ways = listed([f"{c} s from worker {w} to {w + 1}" for w, c in enumerate(sends, 1)])
    asked = []
    for w, right in enumerate(run.idle_per_device):
        mistakes = [
            (works[w], f"that is how long worker {w + 1} works"),
            (run.makespan, "that is how long the whole batch takes"),
            (compute - works[w], "that is without transfers"),
            (compute + way - works[w], "transfers are paid twice: there, and on the way back"),
            (sum(forward) - forward[w], "that is its wait while the batch goes forward"),
            (sum(backward) - backward[w], "that is its wait while the batch goes back"),
        ]
        other = tuple(each for each in mistakes if each[0] != right)
        asked.append(Asked(f"worker {w + 1}'s idle time", right, worker=w, mistakes=other))
    moves = f"A transfer takes {ways}, and as long on the way back." if transfers else ""
    return IdleLevel(
        **head,
        question=(
            f"{p} workers, counted from 1, hold stages of {listed(forward)} s forward, and twice "
            f"that back. One batch goes forward through all, then back. "
            f"{moves or 'Transfers take nothing.'} How long is each worker idle, from the start of "
            f"the batch to its end?{' Waiting for a transfer is idle time too.' * transfers}"
        ),
        form=f"the seconds of workers 1 to {p}, for example '10 s, 8 s, 20 s' for 3",
        hints=(
            "Only one works at a time: whoever works, all the others wait."
            + " During a transfer nobody works at all." * transfers,
            "So a worker waits for everything that is not its own work. How long does the whole "
            f"batch take, forward and back{', with all the ways there and back' * transfers}?",
            f"The batch takes {plus(forward)} s forward and twice that back. "
            + f"The ways add {plus(sends)} s, and once more on the way back. " * transfers
            + f"Take away what a worker does itself: worker 1 works {forward[0]} + {backward[0]} "
            "s.",
        ),
        sheet=NumberSheet(tuple(asked)),
        runs=(Run(f"{p} workers, one batch{', with transfers' * transfers}", run),),
        lines=(
            f"The batch takes {total(forward)} s forward and {total(backward)} s back",
            *([f"All the ways, there and back: 2 x ({plus(sends)}) = {2 * way} s"] * transfers),
            f"One works at a time, so it ends after {sum(forward)} + {sum(backward)}"
            + f" + {2 * way}" * transfers
            + f" = {end} s",
            *(
                f"Worker {w} works {f} + {b} = {f + b} s and waits {end} - {f + b} = "
                f"{end - f - b} s"
                for w, (f, b) in enumerate(zip(forward, backward, strict=True), 1)
            ),
            "Answer: " + ", ".join(f"{end - work} s" for work in works),
        ),
    )


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
