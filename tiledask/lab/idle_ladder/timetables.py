"""Level 1: fill the timetable of one batch."""

from random import Random

from tiledask.lab.idle_ladder.arithmetic import listed, total
from tiledask.lab.idle_ladder.level import IdleLevel, Run
from tiledask.lab.idle_ladder.sheets.timetable import IDLE, Timetable
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate

__all__ = ["fill_the_timetable"]


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
