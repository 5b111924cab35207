"""A program: what every rank does, instruction by instruction, made from shapes alone.

    rank 0: 0F.0 0F.1 0B.0 0B.1        one line per rank: parts, each for a frame (a micro-batch);
    rank 1: 1F.0 1B.0 1F.1 1B.1        what a schedule calls an action

    part 0F of rank 0                  a part is written once, however many frames there are
      x1 kept0 = do forward
      send x1 to 1 @to_1               @ a stream: each goes on in its own order

A buffer is of one frame: written once, and let go after the last instruction that reads it. Between
the streams of a rank only buffers order things: an instruction waits for what it reads.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tiledask.plan import html

if TYPE_CHECKING:
    from tiledask.plan.ledger import Ledger
    from tiledask.plan.pipelines.timeline import Timeline
    from tiledask.plan.products.traffic import Traffic

__all__ = [
    "COMPUTE_STREAM",
    "Do",
    "Instruction",
    "Program",
    "ProgramLine",
    "ProgramPart",
    "ProgramRole",
    "Recv",
    "Send",
]

COMPUTE_STREAM = "compute"


@dataclass(frozen=True, slots=True)
class Do:
    """A kernel is run.

    >>> Do("forward", ("x1",), ("x2", "kept1"))
    x2 kept1 = do forward x1
    """

    kernel: str
    reads: tuple[str, ...] = ()
    """Names of buffers."""
    writes: tuple[str, ...] = ()
    stream: str = COMPUTE_STREAM

    def __repr__(self) -> str:
        made = f"{' '.join(self.writes)} = " if self.writes else ""
        return _on(" ".join((f"{made}do", self.kernel, *self.reads)), self.stream)


@dataclass(frozen=True, slots=True)
class Send:
    """A buffer goes to another rank, where a `Recv` of the same name and frame takes it."""

    buffer: str
    peer: int
    """The rank that it goes to."""
    stream: str = COMPUTE_STREAM

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.buffer,)

    @property
    def writes(self) -> tuple[str, ...]:
        return ()

    def __repr__(self) -> str:
        return _on(f"send {self.buffer} to {self.peer}", self.stream)


@dataclass(frozen=True, slots=True)
class Recv:
    """A buffer comes from another rank."""

    buffer: str
    peer: int
    """The rank that it comes from."""
    stream: str = COMPUTE_STREAM

    @property
    def reads(self) -> tuple[str, ...]:
        return ()

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.buffer,)

    def __repr__(self) -> str:
        return _on(f"{self.buffer} = recv from {self.peer}", self.stream)


def _on(text: str, stream: str) -> str:
    return text if stream == COMPUTE_STREAM else f"{text} @{stream}"


Instruction = Do | Send | Recv


@dataclass(frozen=True)
class ProgramPart:
    """Instructions that a rank issues one after the other, for one frame."""

    kind: str
    """F forward, B full backward, I gradient of the input, W gradient of the weights."""
    stage: int
    instructions: tuple[Instruction, ...]
    replica: int = 0
    """Which replica of the model, where a rank has the stage in several."""

    @property
    def name(self) -> str:
        """Stage and kind: 0F; one ' more for each replica."""
        return f"{self.stage}{self.kind}{chr(39) * self.replica}"


@dataclass(frozen=True)
class ProgramRole:
    """The parts of a rank, and the bytes of the buffers in them."""

    parts: tuple[ProgramPart, ...]
    nbytes: dict[str, int]
    """By buffer; without a size, numbers of activations for instance, any other unit."""


@dataclass(frozen=True, eq=False)
class ProgramLine:
    """The order in which a rank goes through its parts, in columns."""

    part: np.ndarray
    """int32: positions in the parts of the rank's role."""
    frame: np.ndarray
    """int32: the micro-batch."""
    paired: np.ndarray
    """bool: whether this part and the one after it are done at once."""

    def __len__(self) -> int:
        return len(self.part)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.part.tolist(), self.frame.tolist(), strict=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProgramLine):
            return NotImplemented
        columns = ("part", "frame", "paired")
        return all(np.array_equal(getattr(self, c), getattr(other, c)) for c in columns)


@dataclass(frozen=True, repr=False)
class Program:
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

    roles: tuple[ProgramRole, ...]
    lines: tuple[ProgramLine, ...]
    """One per rank."""
    of_rank: tuple[int, ...]
    """The role of each rank."""
    name: str = ""

    @property
    def ranks(self) -> int:
        return len(self.lines)

    def role(self, rank: int) -> ProgramRole:
        """What the parts of a rank are made of."""
        return self.roles[self.of_rank[rank]]

    def __len__(self) -> int:
        """Instructions of all ranks, as often as they are run."""
        return sum(
            int(np.array([len(p.instructions) for p in self.role(r).parts] or [0])[line.part].sum())
            for r, line in enumerate(self.lines)
            if len(line)
        )

    # -- its readers ------------------------------------------------------------------------------

    @cached_property
    def traffic(self) -> "Traffic":
        """The bytes and messages between ranks: counted, line by line."""
        from tiledask.plan.program.count import count

        return count(self)

    @cached_property
    def memory(self) -> "Ledger":
        """What each rank holds at its fullest moment, as its line goes on."""
        from tiledask.plan.program.held import held

        return held(self)

    def timeline(self, seconds: dict[str, Any], **links: Any) -> "Timeline":
        """When everything happens; see :func:`tiledask.plan.program.clock.clock`."""
        from tiledask.plan.program.clock import clock

        return clock(self, seconds, **links)

    def check(self) -> "Program":
        """The program itself; see :func:`tiledask.plan.program.check.check`."""
        from tiledask.plan.program.check import check

        return check(self)

    # -- what people read -------------------------------------------------------------------------

    def to_text(self) -> str:
        """The program as text, which `from_text` reads."""
        from tiledask.plan.program.text import to_text

        return to_text(self)

    @classmethod
    def from_text(cls, text: str) -> "Program":
        """The program that ``text`` says; raises ProgramError for what it cannot be."""
        from tiledask.plan.program.text import from_text

        return from_text(text)

    def line_text(self, rank: int) -> str:
        """The line of a rank: parts and their frames."""
        from tiledask.plan.program.text import line_text

        return line_text(self, rank)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        return f"Program({name}{self.ranks} ranks, {len(self):,} instructions)"

    def _repr_html_(self) -> str:
        rows = [(f"rank {r}", _cut(self.line_text(r))) for r in range(self.ranks)]
        return html.table(("", "parts, each for a micro-batch"), rows, repr(self), first="th")


def _cut(text: str, most: int = 2_000) -> str:
    return text if len(text) <= most else f"{text[:most]} ..."
