"""Level 11: which gap of a run is there for which reason."""

from random import Random
from typing import NamedTuple

import numpy as np

from tiledask.lab.idle_ladder.arithmetic import listed, num
from tiledask.lab.idle_ladder.level import IdleLevel, Run
from tiledask.lab.idle_ladder.sheets.names import Name, NameSheet
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline

__all__ = ["KINDS", "Gap", "gaps_of", "kind_of", "which_gap_is_which"]

_TINY = 1e-9
"""Seconds: rounding of sums."""

KINDS = {
    "warm-up": ("warm.?up", "warming.?up", "ramp.?up", "fill(ing)?"),
    "transfer": ("transfers?", "wait.*transfer", "communication", "latency", "send(ing)?"),
    "imbalance": ("imbalanced?", "unbalanced", "uneven", "slow stage"),
    "drain": ("drain(ing|ed)?", "cool.?down", "ramp.?down"),
}
"""Why a worker is idle -> what else people call it."""


class Gap(NamedTuple):
    """Seconds in which a worker is idle."""

    worker: int
    """Counted from 0, as the simulator does."""
    start: float
    end: float


def gaps_of(timeline: Timeline, worker: int) -> list[Gap]:
    """Every gap of one worker, in time; the first may start at 0, the last end with the run.

    >>> gaps_of(simulate("naive", 2, 1), 0)
    [Gap(worker=0, start=1.0, end=4.0)]
    """
    mine = timeline.device == worker
    ends = [0.0, *timeline.end[mine].tolist()]
    starts = [*timeline.start[mine].tolist(), timeline.makespan]
    found = (Gap(worker, a, b) for a, b in zip(ends, starts, strict=True))
    return [gap for gap in found if gap.end - gap.start > 1e-9]


def kind_of(run: Timeline, at_once: Timeline, gap: Gap) -> str:
    """Why the worker is idle in ``gap``: one of KINDS, or "" where several reasons share it.

    ``at_once``: the same run with transfers that take no time. A gap in the middle that stays there
    is a neighbour's who is slower; one that is gone was the way's.
    """
    mine = np.flatnonzero(run.device == gap.worker)
    kind, start = run.kind[mine], run.start[mine]
    if gap.end <= start[kind == "B"].min():
        return "warm-up"
    if gap.start >= run.end[mine][kind == "F"].max():
        return "drain"
    next_one = mine[np.flatnonzero(np.isclose(start, gap.end))[0]]
    still_made = run.waits.true_idle[next_one] > _TINY
    stays = at_once.start[next_one] - at_once.end[next_one - 1] > _TINY
    if still_made != stays:
        return ""
    return "imbalance" if stays else "transfer"


_UNEVEN = (
    *((2, 1, 2), (3, 2, 3), (1, 2, 1, 2), (2, 1, 2, 1), (2, 2, 1, 2), (2, 3, 2, 3)),
    *((3, 2, 1, 2), (3, 2, 1, 3), (3, 2, 3, 1), (3, 2, 3, 2), (3, 3, 2, 3)),
)
"""Forwards, over the time of a transfer, that often leave gaps of all kinds."""


def _with_all_kinds(rng: Random) -> tuple[Timeline, Timeline, list[int], float, list[Gap]]:
    """(a run, the same without latency, its forward times, its latency, five of its gaps)."""
    while True:
        latency, m = rng.choice((1, 2)), rng.randint(4, 7)
        forward = [latency * f for f in rng.choice(_UNEVEN)]
        p = len(forward)
        order, backward = schedule("1f1b", p, m), [2 * f for f in forward]
        run = simulate(order, forward, backward, latency=latency)
        at_once = simulate(order, forward, backward)
        by_kind: dict[str, list[Gap]] = {kind: [] for kind in ("", *KINDS)}
        for gap in (gap for w in range(p) for gap in gaps_of(run, w)):
            by_kind[kind_of(run, at_once, gap)].append(gap)
        del by_kind[""]
        if all(by_kind.values()):
            chosen = [rng.choice(found) for found in by_kind.values()]
            rest = [gap for found in by_kind.values() for gap in found if gap not in chosen]
            if rest:
                chosen.append(rng.choice(rest))
                rng.shuffle(chosen)
                return run, at_once, forward, latency, chosen


def which_gap_is_which(head: dict, rng: Random) -> IdleLevel:
    """Five gaps of one run, each by its reason."""
    run, at_once, forward, latency, gaps = _with_all_kinds(rng)
    m = 1 + int(run.microbatch.max())
    letters = "ABCDE"
    shown = [
        f"{letter} worker {g.worker + 1}, {num(g.start)} to {num(g.end)} s"
        for letter, g in zip(letters, gaps, strict=True)
    ]
    lines = [_because(run, gap, letter) for letter, gap in zip(letters, gaps, strict=True)]
    kinds = [line.rpartition(": ")[2] for line in lines]
    answer = ", ".join(f"{letter} {kind}" for letter, kind in zip(letters, kinds, strict=True))
    return IdleLevel(
        **head,
        question=(
            f"{run.devices} workers, counted from 1, run 1F1B with {m} micro-batches; a forward "
            f"takes them {listed(forward)} s, a backward twice that, and a transfer "
            f"{num(latency)} s from one to the next. Five of the gaps have a letter: "
            f"{'; '.join(shown)}. Which is which? 'warm-up' is before a worker's first backward, "
            f"'drain' after its last "
            f"forward; in between it is 'transfer' if what the next action needs is already made "
            f"and on its way when the gap begins, 'imbalance' if another worker still makes it."
        ),
        form="a word for each letter, for example 'A drain, B transfer, ...'",
        hints=(
            "Look first whether the worker has done a backward before the gap, and whether a "
            "forward follows after it.",
            "For a gap in the middle, find the action that comes after it, and the one on the "
            "neighbour that makes what it needs: the activation for a forward, the gradient for a "
            "backward.",
            f"If that one ended {num(latency)} s before the gap ends and not later than the gap "
            f"began, only the way took time. If it still ran when the gap began, the neighbour was "
            f"slower.",
        ),
        sheet=NameSheet(
            tuple(
                Name(f"gap {letter}", kind_of(run, at_once, gap))
                for letter, gap in zip(letters, gaps, strict=True)
            ),
            KINDS,
            "A drain, B transfer, ...",
            tuple(letters),
            tuple(gaps),
        ),
        runs=(Run(f"1F1B, {run.devices} workers, {m} micro-batches", run),),
        lines=(*lines, f"Answer: {answer}"),
    )


def _because(run: Timeline, gap: Gap, letter: str) -> str:
    """A gap's reason, from the spans around it."""
    spans = [
        (f"{run.kind[i]}{run.microbatch[i]}", float(run.start[i]), float(run.end[i]))
        for i in range(len(run))
        if run.device[i] == gap.worker
    ]
    where = f"{letter}, worker {gap.worker + 1}, {num(gap.end - gap.start)} s"
    if not any(word[0] == "B" and end <= gap.start + _TINY for word, _, end in spans):
        return f"{where}, no backward done before it: warm-up"
    later = [word for word, start, _ in spans if start >= gap.end - _TINY]
    if not any(word[0] == "F" for word in later):
        return f"{where}, no forward to come after it: drain"
    action = later[0]
    neighbour = gap.worker + (-1 if action[0] == "F" else 1)
    (made,) = (
        float(run.end[i])
        for i in np.flatnonzero(run.device == neighbour)
        if f"{run.kind[i]}{run.microbatch[i]}" == action
    )
    words = f"{where}, then {action}: worker {neighbour + 1} finished it at {num(made)} s"
    began = f"the gap began at {num(gap.start)} s"
    if made <= gap.start + _TINY:
        return f"{words}, and {began}; it was on its way: transfer"
    return f"{words}, and {began}; it was not made yet: imbalance"
