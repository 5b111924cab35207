"""What every rank does, instruction by instruction, made from shapes alone.

    rank 0: 0F.0 0F.1 0B.0 0B.1        one line per rank: parts, each for a frame (a micro-batch);
    rank 1: 1F.0 1B.0 1F.1 1B.1        what a schedule calls an action

    part 0F of rank 0                  a part is written once, however many frames and ranks
      x1 kept0 = do forward
      send x1 to 1 @to_1               @ a stream: each goes on in its own order

A buffer is of one frame: written once, and let go after the last instruction that reads it. What
stays (weights, states) is of the rank: it is there before, may be written again, and stays.
Between the streams of a rank only buffers order things: an instruction waits for what it reads,
and a write of what stays for all that came before it in the line and reads or writes that.

Ranks are those of a mesh, in row-major order. An instruction names axes of it and coordinates
along them, never a rank: so ranks whose blocks have equal shapes share their parts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, ClassVar, Self

import numpy as np

from tiledask.plan.collectives.algorithms import Move, default
from tiledask.plan.collectives.cost import Cost, added_up, cost, loads, ranks_of
from tiledask.plan.collectives.halo import halo_strips, halo_widths
from tiledask.plan.products.regions import Region

__all__ = [
    "COLLECTIVES",
    "COMPUTE_STREAM",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Broadcast",
    "Collective",
    "Do",
    "Fetch",
    "HaloExchange",
    "HaloReduce",
    "Instruction",
    "Instructions",
    "Keep",
    "ProgramLine",
    "ProgramPart",
    "ProgramRole",
    "Recv",
    "Reduce",
    "ReduceScatter",
    "Send",
    "Stop",
    "buffer_of",
]

COMPUTE_STREAM = "compute"


@dataclass(frozen=True, slots=True)
class Do:
    """A kernel is run. What stays and is written is changed in place.

    >>> Do("forward", ("x1",), ("x2", "kept1"))
    x2 kept1 = do forward x1
    >>> Do("add", ("grads/head[w]", "dw"), ("grads/head[w]",), options=(("rows", 8),))
    grads/head[w] = do add grads/head[w] dw {'rows': 8}
    """

    kernel: str
    reads: tuple[str, ...] = ()
    """Names of buffers; with [item], of an array in one that is flat."""
    writes: tuple[str, ...] = ()
    stream: str = COMPUTE_STREAM
    options: tuple[tuple[str, Any], ...] = ()
    """(name, value) of what the kernel is told besides: numbers, text, and tuples of these.
    ("part", axis, counts) is the slice that is this rank's, by its coordinate along the axis;
    "product", (m, k, n) of a matrix product, is for those who price it; "work", bytes that it
    needs beside what it reads and writes, for those who weigh it."""

    @property
    def work(self) -> int:
        """Bytes of its work space."""
        return next((value for name, value in self.options if name == "work"), 0)

    def __repr__(self) -> str:
        made = f"{' '.join(self.writes)} = " if self.writes else ""
        told = (str(dict(self.options)),) if self.options else ()
        return _on(" ".join((f"{made}do", self.kernel, *self.reads, *told)), self.stream)


@dataclass(frozen=True, slots=True)
class Send:
    """A buffer goes to another rank, where a `Recv` of the same name and frame takes it."""

    buffer: str
    peer: int
    """The coordinate of the rank that it goes to."""
    stream: str = COMPUTE_STREAM
    axis: int = 0
    """Of the mesh, along which that is."""

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.buffer,)

    @property
    def writes(self) -> tuple[str, ...]:
        return ()

    def __repr__(self) -> str:
        return _on(f"send {self.buffer} to {self.peer}{_along(self.axis)}", self.stream)


@dataclass(frozen=True, slots=True)
class Recv:
    """A buffer comes from another rank."""

    buffer: str
    peer: int
    """The coordinate of the rank that it comes from."""
    stream: str = COMPUTE_STREAM
    axis: int = 0
    """Of the mesh, along which that is."""

    @property
    def reads(self) -> tuple[str, ...]:
        return ()

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.buffer,)

    def __repr__(self) -> str:
        return _on(f"{self.buffer} = recv from {self.peer}{_along(self.axis)}", self.stream)


@dataclass(frozen=True, slots=True, repr=False)
class Collective:
    """What all ranks that differ along some axes of the mesh do together: one of its kinds."""

    kind: ClassVar[str] = ""

    buffer: str
    """What this rank brings; empty if it brings nothing."""
    result: str
    """What it has afterwards: another buffer; empty if it has nothing."""
    axes: tuple[int, ...]
    counts: tuple[int, ...]
    """Elements of each member's chunk."""
    itemsize: int
    """Bytes of an element."""
    label: str = ""
    among: tuple[int, ...] = ()
    """Which of these ranks take part, by their number among them; (): all."""
    dim: int = 0
    """The dimension along which chunks are joined, or cut."""
    extents: tuple[int, ...] = ()
    """Of the chunks along it; (): their counts, of what is flat."""
    op: str = "sum"
    """Of what is added up: or "max"."""
    stream: str = COMPUTE_STREAM
    root: int = 0
    """From or to which of the members all of it goes, by its number among them."""
    shape: tuple[int, ...] = ()
    """Of what a root sends: the others have nothing to tell it by."""

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.buffer,) if self.buffer else ()

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.result,) if self.result else ()

    @property
    def size(self) -> int:
        """How many ranks take part."""
        return ranks_of(self.kind, self.counts)

    @property
    def cost(self) -> Cost:
        """By member, the bytes and the messages."""
        algorithm = default(self.kind, self.size)
        return cost(self.kind, algorithm, self.counts, self.itemsize, self.root)

    def loads(self) -> Iterable[list[tuple[Move, int]]]:
        """By round, its moves and their bytes."""
        algorithm = default(self.kind, self.size)
        return loads(self.kind, algorithm, self.counts, self.itemsize, self.root)

    def elements(self, me: int) -> tuple[int, int]:
        """How many member ``me`` brings, and how many it has afterwards."""
        return sum(self.counts), sum(self.counts)

    def __repr__(self) -> str:
        said = [f for f in fields(self) if f.name not in ("buffer", "result", "stream")]
        told = {f.name: value for f in said if (value := getattr(self, f.name)) != f.default}
        made = f"{self.result} = " if self.result else ""
        return _on(f"{made}{' '.join((self.kind, *self.reads))} {told}", self.stream)


class AllReduce(Collective):
    """The sum of what all bring, on all.

    >>> AllReduce("part", "y", (1,), (4, 4), 8, "layer 0/mlp/w_2/forward", stream="tp")
    y = all_reduce part {'axes': (1,), 'counts': (4, 4), 'itemsize': 8, \
'label': 'layer 0/mlp/w_2/forward'} @tp
    """

    __slots__ = ()
    kind = "all_reduce"


class AllGather(Collective):
    """What all bring, one behind the other, on all."""

    __slots__ = ()
    kind = "all_gather"

    def elements(self, me: int) -> tuple[int, int]:
        return self.counts[me], sum(self.counts)


class ReduceScatter(Collective):
    """Of the sum of what all bring, each rank's part."""

    __slots__ = ()
    kind = "reduce_scatter"

    def elements(self, me: int) -> tuple[int, int]:
        return sum(self.counts), self.counts[me]


class Broadcast(Collective):
    """What the root brings, on all; the others bring nothing.

    >>> Broadcast("", "x1", (1,), (2, 2), 8, shape=(2, 2), root=1)
    x1 = broadcast {'axes': (1,), 'counts': (2, 2), 'itemsize': 8, 'root': 1, 'shape': (2, 2)}
    """

    __slots__ = ()
    kind = "broadcast"

    def elements(self, me: int) -> tuple[int, int]:
        whole = sum(self.counts)
        return whole if me == self.root else 0, whole


class Reduce(Collective):
    """The sum of what all bring, on the root; the others have nothing afterwards."""

    __slots__ = ()
    kind = "reduce"

    def elements(self, me: int) -> tuple[int, int]:
        whole = sum(self.counts)
        return whole, whole if me == self.root else 0


@dataclass(frozen=True, slots=True, repr=False)
class AllToAll(Collective):
    """Of what each brings a part for every member, joined by whom they come from.

    ``counts``: of each chunk, n*s + d of the one that goes from member s to d. ``extents``: of
    the parts that are cut.
    """

    kind: ClassVar[str] = "all_to_all"

    split_dim: int = 0
    """The dimension along which what is brought is cut."""

    def elements(self, me: int) -> tuple[int, int]:
        n = self.size
        return sum(self.counts[n * me : n * (me + 1)]), sum(self.counts[me::n])


@dataclass(frozen=True, slots=True, repr=False)
class HaloExchange(Collective):
    """The own rows, and copies of those of others before and behind them.

    ``extents``: rows of each member, along ``dim``; ``counts``: their elements.

    >>> halo = HaloExchange("x", "wider", (1,), (30, 20, 0), 8, dim=2, extents=(3, 2, 0), after=1)
    >>> halo.elements(0), halo.cost.received
    ((30, 40), (80, 0, 0))
    """

    kind: ClassVar[str] = "halo_exchange"

    before: int = 0
    """Rows that a member gets before its own, as far as there are any; and behind them."""
    after: int = 0

    @property
    def cost(self) -> Cost:
        return added_up(self.loads(), self.size)

    def loads(self) -> Iterable[list[tuple[Move, int]]]:
        back, row = self.kind == "halo_reduce", self._row * self.itemsize
        found = []
        strips = halo_strips(self.extents, self.before, self.after)
        for strip in sorted(strips, key=lambda each: each.source > each.destination):  # each way
            ends = strip.destination, strip.source
            move = Move(*(ends if back else ends[::-1]), (), back)
            found.append((move, row * (strip.stop - strip.start)))
        return [found]

    def elements(self, me: int) -> tuple[int, int]:
        lent = self._row * sum(halo_widths(self.extents, me, self.before, self.after))
        return self.counts[me], self.counts[me] + lent

    @property
    def _row(self) -> int:
        return sum(self.counts) // max(1, sum(self.extents))


class HaloReduce(HaloExchange):
    """Of rows with halos the own ones, to which is added what others have of them in theirs."""

    __slots__ = ()
    kind = "halo_reduce"

    def elements(self, me: int) -> tuple[int, int]:
        own, wider = HaloExchange.elements(self, me)
        return wider, own


COLLECTIVES: dict[str, type[Collective]] = {
    each.kind: each
    for each in (
        AllReduce,
        AllGather,
        ReduceScatter,
        Broadcast,
        Reduce,
        AllToAll,
        HaloExchange,
        HaloReduce,
    )
}


@dataclass(frozen=True, slots=True)
class Stop:
    """The line ends here if a buffer, one number, is not a number. Readers go on behind it."""

    buffer: str
    stream: str = COMPUTE_STREAM

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.buffer,)

    @property
    def writes(self) -> tuple[str, ...]:
        return ()

    def __repr__(self) -> str:
        return _on(f"stop if not {self.buffer}", self.stream)


@dataclass(frozen=True, slots=True)
class Fetch:
    """A region of an array is read from where it lies: who holds it does nothing for that.

    >>> Fetch("room0[a]", "A", ((0, 4), (8, 12)), 64, source=2)
    room0[a] = fetch A from 2 {'region': ((0, 4), (8, 12)), 'nbytes': 64} @fetch
    """

    buffer: str
    """Where it goes; with [item], into one that stays and has room for several."""
    array: str
    region: Region
    nbytes: int
    source: int | None = None
    """The rank that holds it; None: it lies in a file, or is made from what lies there."""
    stream: str = "fetch"
    at: int = 0
    """From which byte of the buffer on it lies."""
    adds: bool = False
    """Whether it is added to what the buffer holds there."""

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.buffer,) if self.adds else ()

    @property
    def writes(self) -> tuple[str, ...]:
        return (self.buffer,)

    def __repr__(self) -> str:
        told = _told(self, "region", "nbytes", "at", "adds")
        place = "" if self.source is None else f" from {self.source}"
        return _on(f"{self.buffer} = fetch {self.array}{place} {told}", self.stream)


@dataclass(frozen=True, slots=True)
class Keep:
    """What a buffer holds of an array goes where that lies.

    >>> Keep("C", "C", ((0, 4), (0, 8)), summed=512, partial=True)
    keep C as C {'region': ((0, 4), (0, 8)), 'summed': 512, 'partial': True}
    """

    buffer: str
    array: str
    region: Region
    summed: int = 0
    """Of a sum, over how much."""
    partial: bool = False
    """Whether the sum goes on: then it may be left out."""
    stream: str = COMPUTE_STREAM

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.buffer,)

    @property
    def writes(self) -> tuple[str, ...]:
        return ()

    def __repr__(self) -> str:
        told = _told(self, "region", "summed", "partial")
        return _on(f"keep {self.buffer} as {self.array} {told}", self.stream)


def _told(each: Any, *names: str) -> dict[str, Any]:
    """The values of fields, without those that say nothing."""
    return {name: value for name in names if (value := getattr(each, name)) not in (0, False)}


def _on(text: str, stream: str) -> str:
    return text if stream == COMPUTE_STREAM else f"{text} @{stream}"


def _along(axis: int) -> str:
    return f" along {axis}" if axis else ""


Instruction = Do | Send | Recv | Collective | Stop | Fetch | Keep


def buffer_of(name: str) -> str:
    """The buffer in which an array lies.

    >>> buffer_of("weights/head[norm.w]"), buffer_of("x1")
    ('weights/head', 'x1')
    """
    return name.partition("[")[0]


@dataclass(frozen=True)
class ProgramPart:
    """Instructions that a rank issues one after the other, for one frame."""

    kind: str
    """F forward, B full backward, I gradient of the input, W of the weights, REDUCE_GRAD; or a word
    for what no stage does."""
    stage: int
    """-1: none."""
    instructions: tuple[Instruction, ...]
    replica: int = 0
    """Its number among those that differ in the pipeline alone: in who is before and after it."""
    rows: int | None = None
    """Rows of its micro-batches, where these have different numbers."""

    @cached_property
    def name(self) -> str:
        """Stage and kind: 0F; one ' more for each other pipeline, and the rows."""
        stage = self.stage if self.stage >= 0 else ""
        rows = "" if self.rows is None else f":{self.rows}"
        return f"{stage}{self.kind}" + "'" * self.replica + rows


Items = tuple[tuple[str, tuple[int, ...]], ...]
"""(name, shape) of the arrays in a flat buffer, one behind the other."""


@dataclass(frozen=True)
class ProgramRole:
    """The parts of a rank, and the bytes of the buffers in them."""

    parts: tuple[ProgramPart, ...]
    nbytes: dict[str, int]
    """By buffer; without a size, numbers of activations for instance, any other unit."""
    stays: dict[str, int] = field(default_factory=dict)
    """By buffer, what is of the rank and stays: there before the line begins, and changed by it."""
    scratch: frozenset[str] = frozenset()
    """Of what stays, what every line makes anew: sums of gradients."""
    given: frozenset[str] = frozenset()
    """Of what stays, what no line changes."""
    items: dict[str, Items] = field(default_factory=dict)
    """By buffer that is flat: what lies in it."""
    within: dict[str, str] = field(default_factory=dict)
    """By buffer of a frame that has no place of its own: the one that stays in whose it lies, over
    what was there."""

    def size(self, name: str) -> int:
        """Bytes of a buffer."""
        return (self.nbytes if name in self.nbytes else self.stays)[name]


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

    @property
    def at_once(self) -> list[list[int]]:
        """The turns that are done at once, in their order: usually one, of a pair both."""
        ends = np.flatnonzero(~self.paired) + 1
        return [turns.tolist() for turns in np.split(np.arange(len(self)), ends)[:-1]]

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
    mesh: tuple[int, ...] = ()
    """(): all ranks along one axis."""
    stands_for: tuple[int, ...] = ()
    """Of representatives: how many ranks each is, along every axis; (): 1."""

    @property
    def ranks(self) -> int:
        return len(self.lines)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of the mesh."""
        return self.mesh or (self.ranks,)

    @cached_property
    def coordinates(self) -> tuple[tuple[int, ...], ...]:
        """Where in the mesh each rank is."""
        return tuple(product(*map(range, self.shape)))

    def peer(self, rank: int, each: Send | Recv) -> int:
        """The rank at the other end of a message."""
        after = prod(self.shape[each.axis + 1 :])
        return rank + (each.peer - self.coordinates[rank][each.axis]) * after

    def members(self, rank: int, each: Collective) -> tuple[int, ...]:
        """The ranks that take part in a collective of ``rank``, in their order."""
        return self.along(rank, each.axes, each.among)

    def along(
        self, rank: int, axes: tuple[int, ...], among: tuple[int, ...] = ()
    ) -> tuple[int, ...]:
        """The ranks that differ from ``rank`` along some axes only; or those of them by number."""
        key = axes, among
        if key not in self._groups:
            every = range(len(self.shape))
            order = [a for a in every if a not in axes] + [a for a in every if a in axes]
            together = prod(self.shape[axis] for axis in axes)
            rows = np.arange(self.ranks).reshape(self.shape).transpose(order).reshape(-1, together)
            groups = map(tuple, (rows[:, among] if among else rows).tolist())
            self._groups[key] = {r: of for of in groups for r in of}
        return self._groups[key].get(rank, ())

    def representatives(self) -> Self:
        """A program of fewer ranks, that stand for all: an axis along which all ranks do the same
        is left with one. What its members do together this one does, as long as they."""
        shape, axes = self.shape, list[int]()
        key = np.empty(self.ranks, np.int64)
        known: dict[tuple[int, int], int] = {}
        for rank, line in enumerate(self.lines):
            key[rank] = known.setdefault((self.of_rank[rank], id(line)), len(known))
        key = key.reshape(shape)
        messages = {each.axis for role in self.roles for part in role.parts
                    for each in part.instructions if isinstance(each, Send | Recv)}  # fmt: skip
        for axis in range(len(shape)):
            first = key.take([0], axis=axis)
            if axis not in messages and (key == first).all():
                axes.append(axis)
        here = tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(len(shape)))
        kept = np.arange(self.ranks).reshape(shape)[here]
        ranks = kept.ravel().tolist()
        return replace(
            self,
            lines=tuple(self.lines[rank] for rank in ranks),
            of_rank=tuple(self.of_rank[rank] for rank in ranks),
            mesh=kept.shape,
            stands_for=tuple(shape[axis] if axis in axes else 1 for axis in range(len(shape))),
        )

    def stands_along(self, axes: tuple[int, ...]) -> int:
        """How many ranks along some axes each of these stands for."""
        return prod(self.stands_for[axis] for axis in axes) if self.stands_for else 1

    @cached_property
    def _groups(self) -> dict[Any, dict[int, tuple[int, ...]]]:
        return {}

    def alone(self, rank: int) -> "Instructions":
        """What one rank does, by itself: all that who runs it has to know."""
        return Instructions((self.role(rank),), (self.lines[rank],), (0,), self.name)

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
