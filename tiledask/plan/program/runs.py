"""What a rank does by itself, one after the other, as one instruction: fewer for the clock.

    recv x1    linear  gelu  linear ...    send x2    accumulate  accumulate
    recv x1    run                         send x2    run

For a program whose collectives are on the stream of the work, but for those that its schedule has
beside it, and ranks that stand for others: so a layout of a thousand devices and micro-batches is
timed as a pipeline. A run waits for all that it reads: of weights that are gathered beside the
work, for all of the stage.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from tiledask.plan.program.instructions import (
    COMPUTE_STREAM,
    Collective,
    Do,
    Instruction,
    Instructions,
    ProgramPart,
    ProgramRole,
    Stop,
    buffer_of,
)

__all__ = ["in_runs"]

P = TypeVar("P", bound=Instructions)


class _Ends(NamedTuple):
    """Buffers of a role that runs share with what is no run; its stream orders the others."""

    come: set[str]
    go: set[str]


def in_runs(
    program: P, kernel: Callable[[Do], float], collective: Callable[[Collective], float]
) -> tuple[P, Callable[[Do], float]]:
    """(the program in runs, the seconds of each run, and of each kernel on another stream). What
    stays is left out: the stream's order keeps it."""
    took: dict[int, float] = {}

    def alone(rank: int, each: Instruction) -> Any:
        """Alike for what ``rank`` does by itself on the stream of its work."""
        single = isinstance(each, Do | Stop) or (
            isinstance(each, Collective) and len(program.members(rank, each)) == 1
        )
        return "alone" if single and each.stream == COMPUTE_STREAM else id(each)

    def seconds(each: Instruction) -> float:
        if isinstance(each, Collective):
            return collective(each)
        return kernel(each) if isinstance(each, Do) else 0.0

    def of_part(rank: int, role: ProgramRole, part: ProgramPart, ends: _Ends) -> ProgramPart:
        made: list[Instruction] = []
        for _, group in groupby(part.instructions, lambda each: alone(rank, each)):
            run = list(group)
            if alone(rank, run[0]) != "alone":
                made += run
                took.update((id(each), seconds(each)) for each in run if isinstance(each, Do))
                continue
            reads = {buffer_of(name) for each in run for name in each.reads} & ends.come
            writes = {buffer_of(name) for each in run for name in each.writes} & ends.go
            made.append(Do("run", tuple(sorted(reads)), tuple(sorted(writes))))
            took[id(made[-1])] = sum(map(seconds, run))
        return replace(part, instructions=tuple(made))

    roles = []
    for number, role in enumerate(program.roles):
        rank = program.of_rank.index(number) if number in program.of_rank else 0
        others = [
            each
            for part in role.parts
            for each in part.instructions
            if alone(rank, each) != "alone"
        ]
        in_order = {id(each): role.stays.keys() for each in others if each.stream == COMPUTE_STREAM}
        come, go = (
            {
                buffer
                for each in others
                for buffer in map(buffer_of, names(each))
                if buffer not in in_order.get(id(each), ())
            }
            for names in (attrgetter("writes"), attrgetter("reads"))
        )
        parts = tuple(of_part(rank, role, part, _Ends(come, go)) for part in role.parts)
        given = role.stays.keys() - {
            name for part in parts for each in part.instructions for name in each.writes
        }
        roles.append(replace(role, parts=parts, scratch=frozenset(), given=frozenset(given)))
    return replace(program, roles=tuple(roles)), lambda each: took[id(each)]
