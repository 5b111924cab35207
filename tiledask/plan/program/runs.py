"""What a rank does by itself, one after the other, as one instruction: fewer for the clock.

    recv x1    linear  gelu  linear ...    send x2    accumulate  accumulate
    recv x1    run                         send x2    run

For a program whose collectives are on the stream of the work, and ranks that stand for others: so
a layout of a thousand devices and micro-batches is timed as a pipeline.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeVar

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


def in_runs(
    program: P, kernel: Callable[[Do], float], collective: Callable[[Collective], float]
) -> tuple[P, Callable[[Do], float]]:
    """(the program in runs, the seconds of each run). What stays is left out: the stream's order
    keeps it."""
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

    def of_part(rank: int, role: ProgramRole, part: ProgramPart) -> ProgramPart:
        made: list[Instruction] = []
        for _, group in groupby(part.instructions, lambda each: alone(rank, each)):
            run = list(group)
            if alone(rank, run[0]) != "alone":
                made += run
                continue
            writes = {buffer_of(name) for each in run for name in each.writes} - role.stays.keys()
            reads = {buffer_of(name) for each in run for name in each.reads} - role.stays.keys()
            made.append(Do("run", tuple(sorted(reads - writes)), tuple(sorted(writes))))
            took[id(made[-1])] = sum(map(seconds, run))
        return replace(part, instructions=tuple(made))

    roles = []
    for number, role in enumerate(program.roles):
        rank = program.of_rank.index(number) if number in program.of_rank else 0
        parts = tuple(of_part(rank, role, part) for part in role.parts)
        given = role.stays.keys() - {
            name for part in parts for each in part.instructions for name in each.writes
        }
        roles.append(replace(role, parts=parts, scratch=frozenset(), given=frozenset(given)))
    return replace(program, roles=tuple(roles)), lambda each: took[id(each)]
