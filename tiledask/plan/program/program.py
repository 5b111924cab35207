"""A program: the ops of every rank, and what reads them.

td.program(schedule)  -->  check      what is missing, out of order, or waited for in a circle
made from shapes           traffic    bytes and messages between ranks: counted
                           memory     what each rank holds: weighed
                           timeline   when everything happens: timed
                           (run)      arrays: tiledask.run_program
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from tiledask.plan.ledger import Ledger
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.program.clock import clock
from tiledask.plan.program.count import count, memory
from tiledask.plan.program.text import ProgramText
from tiledask.plan.program.walk import walk

__all__ = ["Program"]


@dataclass(frozen=True, repr=False)
class Program(ProgramText):
    """The ops of every rank.

    >>> import tiledask as td
    >>> program = td.program(td.schedule("gpipe", 2, 1), block_bytes=8)
    >>> print(program)
    program gpipe
    rank 0: 0F.0 0B.0
    rank 1: 1F.0 1B.0
    of rank 0: x1 8 B, kept0 1 B, dx1 8 B
      0F
        x1 kept0 = do forward
        send x1 to 1 @to_1
      0B
        dx1 = recv from 1 @from_1
        do backward kept0 dx1
    of rank 1: x1 8 B, kept1 1 B, dx1 8 B
      1F
        x1 = recv from 0 @from_0
        kept1 = do forward x1
      1B
        dx1 = do backward kept1
        send dx1 to 0 @to_0
    >>> program.check().traffic.sent, program.memory.per_place
    ((8, 8), {0: 9, 1: 9})
    >>> program.timeline({"F": 1.0, "B": 2.0}, latency=0.5).makespan
    7.0
    """

    def check(self) -> Self:
        """The program itself, if it can run and nothing in it is left over.

        Raises ProgramError for the first fault: a buffer that is read before it is written on its
        rank, written twice for a micro-batch, or never read; a message that nobody takes or sends,
        or that is of another size at its other end; a collective that a member leaves out, or
        makes otherwise; ranks that wait for each other in a circle.

        >>> import tiledask as td
        >>> text = td.program(td.schedule("1f1b", 2, 2)).to_text()
        >>> td.Program.from_text(text.replace("send x1 to 1 @to_1", "")).check()
        Traceback (most recent call last):
            ...
        tiledask.errors.ProgramError: rank 1 takes x1 of frame 0 from rank 0, which never sends it to rank 1: turn 0 of rank 1, 1F.0: 'x1 = recv from 0 @from_0'; send it there, after what makes it
        """  # noqa: E501
        walk(self.representatives())
        return self

    @cached_property
    def traffic(self) -> Traffic:
        """The bytes and messages between ranks: counted, order by order."""
        return count(self)

    @cached_property
    def memory(self) -> Ledger:
        """What each rank holds at its fullest moment, as its order goes on."""
        return memory(self)

    def timeline(self, seconds: Any, **links: Any) -> Timeline:
        """When everything happens; see :func:`tiledask.plan.program.clock.clock`."""
        return clock(self, seconds, **links)
