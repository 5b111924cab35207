"""A program: the instructions of every rank, and what reads them.

td.program(schedule)  -->  check      what is missing, out of order, or waited for in a circle
made from shapes           traffic    bytes and messages between ranks: counted
                           memory     what each rank holds: weighed
                           timeline   when everything happens: timed
                           (run)      arrays: tiledask.run_program
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from tiledask.plan import html
from tiledask.plan.ledger import Ledger
from tiledask.plan.pipelines.timeline import Timeline
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.program.check import check
from tiledask.plan.program.clock import clock
from tiledask.plan.program.count import count
from tiledask.plan.program.held import held
from tiledask.plan.program.instructions import Instructions
from tiledask.plan.program.text import from_text, line_text, role_text, to_text

__all__ = ["Program"]


@dataclass(frozen=True, repr=False)
class Program(Instructions):
    """The instructions of every rank.

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

    # -- its readers ------------------------------------------------------------------------------

    @cached_property
    def traffic(self) -> Traffic:
        """The bytes and messages between ranks: counted, line by line."""
        return count(self)

    @cached_property
    def memory(self) -> Ledger:
        """What each rank holds at its fullest moment, as its line goes on."""
        return held(self)

    def timeline(self, seconds: Any, **links: Any) -> Timeline:
        """When everything happens; see :func:`tiledask.plan.program.clock.clock`."""
        return clock(self, seconds, **links)

    def check(self) -> Self:
        """The program itself; see :func:`tiledask.plan.program.check.check`."""
        check(self.representatives())
        return self

    # -- what people read -------------------------------------------------------------------------

    def to_text(self) -> str:
        """The program as text, which `from_text` reads."""
        return to_text(self)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The program that ``text`` says; raises ProgramError for what it cannot be."""
        said = from_text(text)
        return cls(said.roles, said.lines, said.of_rank, said.name, said.mesh)

    def line_text(self, rank: int) -> str:
        """The line of a rank: parts and their frames."""
        return line_text(self, rank)

    def role_text(self, rank: int) -> str:
        """The buffers of a rank and its parts, each with its instructions."""
        return role_text(self, rank)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        return f"Program({name}{self.ranks} ranks, {len(self):,} instructions)"

    def _repr_html_(self) -> str:
        lines: dict[int, list[int]] = {}
        for rank, line in enumerate(self.lines):
            lines.setdefault(id(line), []).append(rank)
        rows = [
            (f"rank {_cut(', '.join(map(str, ranks)), 40)}", _cut(self.line_text(ranks[0])))
            for ranks in lines.values()
        ]
        return html.table(("", "parts, each for a micro-batch"), rows, repr(self), first="th")


def _cut(text: str, most: int = 2_000) -> str:
    return text if len(text) <= most else f"{text[:most]} ..."
