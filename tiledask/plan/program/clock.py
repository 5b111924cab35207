"""When the actions of a schedule's program happen: its orders are simulated as a schedule."""

from collections.abc import Mapping
from typing import Any

from tiledask.errors import ProgramError
from tiledask.plan.pipelines.schedule import KINDS, Action, Schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.program.ops import ProgramData

__all__ = ["clock"]


def clock(program: ProgramData, seconds: Mapping[str, Any], latency: Any = 0.0) -> Timeline:
    """The Timeline of the orders of ``program``; see `Program.timeline`."""
    orders, pairs = list[list[Action]](), list[Action]()
    for rank, steps in enumerate(program.orders):
        blocks = program.role(rank).blocks
        orders.append([Action(blocks[n].kind, blocks[n].stage, i) for n, i, _ in steps])
        pairs += [a for a, step in zip(orders[-1], steps, strict=True) if step.paired]
    there = {action.kind for order in orders for action in order}
    if not there or not there <= {*KINDS} & {*seconds}:
        raise ProgramError(
            f"a timeline is of a schedule's program, and takes seconds of its kinds of actions "
            f"({', '.join(KINDS)}); got blocks of {', '.join(sorted(there)) or 'no kind'} and "
            f"seconds of {', '.join(seconds) or 'none'}"
        )
    rank_of = {(a.stage, a.microbatch): rank for rank, order in enumerate(orders) for a in order}
    stages, microbatches = (1 + max(numbers) for numbers in zip(*rank_of, strict=True))
    pipelines = next(
        n
        for n in range(1, microbatches + 1)
        if all(rank == rank_of.get((s, i % n), rank) for (s, i), rank in rank_of.items())
    )
    places = [[rank_of.get((s, i), 0) for s in range(stages)] for i in range(pipelines)]
    forward, backward, *halves = map(seconds.get, "FBIW")
    schedule = Schedule.of(orders, places, program.name, pairs)
    return simulate(schedule, 0.0 if forward is None else forward, backward, latency, *halves)
