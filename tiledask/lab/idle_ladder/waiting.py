"""Level 2: at two moments, for whose result each worker waits."""

from collections.abc import Sequence
from itertools import accumulate
from random import Random

from tiledask.lab.idle_ladder.arithmetic import listed, plus, total
from tiledask.lab.idle_ladder.level import IdleLevel, Run
from tiledask.lab.idle_ladder.sheets.names import Name, NameSheet
from tiledask.plan.pipelines.needs import needs
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["who_waits_for_whom"]

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
