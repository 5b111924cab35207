"""A program: the ops of every rank, what reads them, and its text.

td.program(schedule)  -->  check      what is missing, out of order, or waited for in a circle
made from shapes           traffic    bytes and messages between ranks: counted
                           memory     what each rank holds: weighed
                           (run)      arrays: tiledask.run_program

program gpipe
rank 0: 0F.0 (0F.1 0B.0)               in parentheses: two blocks at once
of rank 0: x1 8 B, kept0 1 B           what its buffers have
  0F                                   the blocks below, each with its ops
    x1 kept0 = do forward

An op is    [WRITES =] [do] NAME [READS] [to PEER | from PEER [along AXIS]] [{ARGS}] [@STREAM]
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from tiledask.plan.ledger import Ledger
from tiledask.plan.products.traffic import Traffic
from tiledask.plan.program.count import count, memory
from tiledask.plan.program.ops import ProgramData
from tiledask.plan.program.walk import Walk

__all__ = ["Program"]


@dataclass(frozen=True, repr=False)
class Program(ProgramData):
    """The ops of every rank.

    >>> import tiledask as td
    >>> print(td.program(td.schedule("gpipe", 2, 1, forward_only=True), block_bytes=8))
    program gpipe, forward only
    rank 0: 0F.0
    rank 1: 1F.0
    of rank 0: x1 8 B
      0F
        x1 = do forward
        send x1 to 1 @to_1
    of rank 1: x1 8 B
      1F
        x1 = recv from 0 @from_0
        do forward x1
    >>> program = td.program(td.schedule("gpipe", 2, 1), block_bytes=8).check()
    >>> program.traffic.sent, program.memory.per_place
    ((8, 8), {0: 9, 1: 9})
    """

    def check(self) -> Self:
        """The program itself, if it can run and nothing in it is left over.

        Raises ProgramError for the first fault: a buffer that is read before it is written on its
        rank, written twice for a micro-batch, or never read; a message that nobody takes or sends,
        or that is of another size at its other end; ranks that wait for each other in a circle.
        """
        Walk(self).go()
        return self

    @cached_property
    def traffic(self) -> Traffic:
        """The bytes and messages between ranks: counted, order by order."""
        return count(self)

    @cached_property
    def memory(self) -> Ledger:
        """What each rank holds at its fullest moment, as its order goes on."""
        return memory(self)

    # -- text ---------------------------------------------------------------------------------

    def to_text(self) -> str:
        """The whole program. Ranks of one order share a line, and those of one role its blocks."""
        text = [f"program {self.name}".rstrip()]
        if self.mesh:
            text.append(f"mesh {' '.join(map(str, self.mesh))}")
        for ranks in self.alike:
            words = " ".join(map(str, ranks))
            text.append(f"rank {words}: {self.line_text(ranks[0])}".rstrip())
        first = map(self.role_of.index, sorted({*self.role_of}))
        return "\n".join([*text, *map(self.role_text, first)])

    def line_text(self, rank: int) -> str:
        """The order of a rank: blocks, each with its micro-batch.

        >>> import tiledask as td
        >>> td.program(td.schedule("dualpipe", 2, 4)).line_text(0)
        '0F.0 1F.1 0F.2 1B.1 (1F.3 0B.0) 1B.3 0I.2 0W.2'
        """
        words, opened = [], False
        for name, microbatch, paired in self.orders[rank]:
            word = f"{name}.{microbatch}"
            words.append(f"({word}" if paired else f"{word})" if opened else word)
            opened = paired
        return " ".join(words)

    def role_text(self, rank: int) -> str:
        """The role of a rank, with all that have it: its buffers, and blocks with their ops."""
        role, number = self.role(rank), self.role_of[rank]
        ranks = [rank for rank, of in enumerate(self.role_of) if of == number]
        text = [f"of rank {' '.join(map(str, ranks))}: {_sizes(role.sizes)}".rstrip()]
        changed = role.state.keys() - role.accumulators - role.constants
        kinds = {"stays": changed, "scratch": role.accumulators, "given": role.constants}
        for word, names in kinds.items():
            if sizes := {name: size for name, size in role.state.items() if name in names}:
                text.append(f"  {word} {_sizes(sizes)}")
        for name, items in role.items.items():
            shapes = (f"{item} {'x'.join(map(str, shape))}".rstrip() for item, shape in items)
            text.append(f"  in {name}: {', '.join(shapes)}")
        for base in dict.fromkeys(role.alias.values()):
            here = (name for name, of in role.alias.items() if of == base)
            text.append(f"  within {base}: {', '.join(here)}")
        for name, block in role.blocks.items():
            text += [f"  {name}", *(f"    {op!r}" for op in block)]
        return "\n".join(text)

    __str__ = to_text

    def __repr__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        return f"{type(self).__name__}({name}{self.ranks} ranks)"


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size} B" for name, size in sizes.items())
