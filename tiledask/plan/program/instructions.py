"""What every rank does, instruction by instruction, made from shapes alone.

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

import numpy as np

__all__ = [
    "COMPUTE_STREAM",
    "Do",
    "Instruction",
    "Instructions",
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
        return f"{self.stage}{self.kind}" + "'" * self.replica


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
class Instructions:
    """Those of every rank; a `Program` is these with its readers."""

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
