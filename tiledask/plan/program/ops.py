"""What every rank does, op by op, made from shapes alone.

    rank 0: 0F.0 0F.1 0B.0 0B.1        the order of a rank: steps, each a block for a micro-batch;
    rank 1: 1F.0 1B.0 1F.1 1B.1        what a schedule calls an action

    block 0F of rank 0                 a block is written once, however many micro-batches and ranks
      x1 kept0 = do forward
      send x1 to 1 @to_1               @ a stream: each goes on in its own order

A buffer is of one micro-batch: written once, and let go after the last op that reads it. State
(weights, moments) is of the rank: it is there before, may be written again, and stays.

Ranks are those of a mesh, in row-major order. An op names axes of it and coordinates along them,
never a rank: so ranks whose blocks have equal shapes share a role.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, NamedTuple, Self

import numpy as np

from tiledask.errors import ProgramError
from tiledask.plan.collectives.algorithms import Move, default
from tiledask.plan.collectives.cost import Cost, added_up, cost, loads, ranks_of
from tiledask.plan.collectives.rows import halo_strips, halo_widths

__all__ = [
    *("COLLECTIVES", "COMPUTE_STREAM", "Block", "Items", "Op", "Order", "ProgramData"),
    *("ProgramRole", "Step", "buffer_of", "collective", "message"),
]

COMPUTE_STREAM = "compute"
USUAL: dict[str, Any] = {
    "axis": 0, "work": 0, "label": "", "among": (), "dim": 0, "extents": (), "op": "sum",
    "split_dim": 0, "before": 0, "after": 0,
}  # fmt: skip
"""Values that args have where an op does not say them."""


@dataclass(frozen=True, slots=True)
class Op:
    """A kernel, a message, a collective of a group, or "stop".

    >>> Op("forward", ("x1",), ("x2", "kept1"))
    x2 kept1 = do forward x1
    >>> message("recv", "x1", 0, "from_0"), Op("stop", ("factor.0",))
    (x1 = recv from 0 @from_0, stop if not factor.0)
    """

    name: str
    """Of the kernel; "send" or "recv"; one of COLLECTIVES; or "stop": the order ends here if what
    is read, one number, is not a number. Readers go on behind it."""
    reads: tuple[str, ...] = ()
    """Names of buffers; with [item], of an array in one that is flat."""
    writes: tuple[str, ...] = ()
    """What is state is changed in place."""
    args: tuple[tuple[str, Any], ...] = ()
    """(name, value): numbers, text, and tuples of these.

    of a kernel       what it takes besides. ("part", axis, counts) is the slice that is this
                      rank's, by its coordinate along the axis; "product", (m, k, n) of a matrix
                      product, and "work", bytes of work space, are for readers
    of a message      peer: the coordinate of the other rank along an axis of the mesh
    of a collective   see `collective`"""
    stream: str = COMPUTE_STREAM

    def __getitem__(self, arg: str) -> Any:
        """The value of an arg; the usual one where the op does not say it."""
        return next((value for name, value in self.args if name == arg), USUAL.get(arg))

    @property
    def buffer(self) -> str:
        """What a message carries, or "stop" looks at."""
        return (*self.reads, *self.writes)[0]

    @property
    def is_message(self) -> bool:
        return self.name in ("send", "recv")

    @property
    def is_collective(self) -> bool:
        return self.name in COLLECTIVES

    @property
    def is_kernel(self) -> bool:
        return not (self.is_message or self.is_collective or self.name == "stop")

    # -- of collectives ---------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """How many ranks take part in a collective."""
        return ranks_of(self.name, self["counts"])

    def elements(self, me: int) -> tuple[int, int]:
        """How many numbers member ``me`` of a collective brings, and how many it has then."""
        return COLLECTIVES[self.name](self, self["counts"], me)

    def moves(self) -> Iterator[list[tuple[Move, int]]]:
        """By round, the moves of a collective and the bytes of each."""
        counts, itemsize = self["counts"], self["itemsize"]
        if not self.name.startswith("halo"):
            yield from loads(self.name, default(self.name, self.size), counts, itemsize)
            return
        back, row = self.name == "halo_reduce", _row_of(self) * itemsize
        strips = halo_strips(self["extents"], self["before"], self["after"])
        ends = ((s[1], s[0], s) if back else (s[0], s[1], s) for s in strips)
        yield [(Move(a, b, (), back), row * (s.stop - s.start)) for a, b, s in ends]

    @property
    def cost(self) -> Cost:
        """By member of a collective, the bytes and the messages."""
        if self.name.startswith("halo"):
            return added_up(self.moves(), self.size)
        return cost(self.name, default(self.name, self.size), self["counts"], self["itemsize"])

    def __repr__(self) -> str:
        args = dict(self.args)
        words = [f"{' '.join(self.writes)} ="] if self.writes else []
        words += ["do"] * self.is_kernel + [self.name]
        words += ["if not"] * (self.name == "stop") + [*self.reads]
        if self.is_message:
            words.append(f"{'to' if self.name == 'send' else 'from'} {args.pop('peer')}")
            words += [f"along {args.pop('axis')}"] if "axis" in args else []
        words += [str(args)] if args else []
        words += [f"@{self.stream}"] if self.stream != COMPUTE_STREAM else []
        return " ".join(words)


def _row_of(op: Op) -> int:
    """Numbers in a row of what has halos."""
    whole, rows = map(sum, (op["counts"], op["extents"]))
    return int(whole // max(1, rows))


def _halo(op: Op, counts: tuple[int, ...], me: int) -> tuple[int, int]:
    lent = sum(halo_widths(op["extents"], me, op["before"], op["after"]))
    return counts[me], counts[me] + _row_of(op) * lent


COLLECTIVES: dict[str, Callable[[Op, tuple[int, ...], int], tuple[int, int]]] = {
    "all_reduce": lambda op, counts, me: (sum(counts), sum(counts)),
    "all_gather": lambda op, counts, me: (counts[me], sum(counts)),
    "reduce_scatter": lambda op, counts, me: (sum(counts), counts[me]),
    "all_to_all": lambda op, counts, me: (
        sum(counts[op.size * me : op.size * (me + 1)]),
        sum(counts[me :: op.size]),
    ),
    "halo_exchange": _halo,
    "halo_reduce": lambda op, counts, me: _halo(op, counts, me)[::-1],
}
"""By kind: (op, its counts, a member's number) -> (numbers that it brings, that it has then)."""


def message(kind: str, buffer: str, peer: int, stream: str = COMPUTE_STREAM, axis: int = 0) -> Op:
    """A buffer goes to another rank, or comes from one: a "send" there, a "recv" of the same name
    and micro-batch here."""
    reads, writes = ((buffer,), ()) if kind == "send" else ((), (buffer,))
    args = ("peer", peer), ("axis", axis)
    return Op(kind, reads, writes, args if axis else args[:1], stream)


def collective(
    kind: str,
    x: str,
    y: str,
    axes: tuple[int, ...],
    counts: tuple[int, ...],
    itemsize: int,
    stream: str = COMPUTE_STREAM,
    **more: Any,
) -> Op:
    """What all ranks do together that differ along some ``axes`` of the mesh.

    x, y       what this rank brings, and has afterwards
    counts     numbers of each member's chunk; of an all_to_all n*s + d of what goes from s to d
    label      of its records
    among      which of these ranks take part, by their number among them; (): all
    dim        the dimension along which chunks are joined or cut, ``extents`` of theirs along it;
               split_dim: along which an all_to_all cuts what is brought
    op         of what is added up: "sum" or "max"
    before, after    rows that a member gets before and behind its own (halos)

    >>> collective("all_reduce", "part", "y", (1,), (4, 4), 8, "tp", label="mlp/w_2/forward")
    y = all_reduce part {'axes': (1,), 'counts': (4, 4), 'itemsize': 8, 'label': \
'mlp/w_2/forward'} @tp
    """
    if unknown := more.keys() - USUAL.keys():
        raise TypeError(f"a collective has no {min(unknown)}")
    args = {"axes": axes, "counts": counts, "itemsize": itemsize}
    args |= {name: more[name] for name, usual in USUAL.items() if more.get(name, usual) != usual}
    return Op(kind, (x,), (y,), tuple(args.items()), stream)


def buffer_of(name: str) -> str:
    """The buffer in which an array lies: "weights/head" of "weights/head[norm.w]"."""
    return name.partition("[")[0]


@dataclass(frozen=True)
class Block:
    """Ops that a rank issues one after the other, for one micro-batch."""

    kind: str
    """F forward, B full backward, I gradient of the input, W of the weights; or a word for what no
    stage does."""
    stage: int
    """-1: none."""
    ops: tuple[Op, ...]
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


class Step(NamedTuple):
    """A turn of a rank."""

    block: str
    microbatch: int
    paired: bool = False
    """Whether this block and the one of the next step are done at once."""


Order = tuple[Step, ...]
Items = tuple[tuple[str, tuple[int, ...]], ...]
"""(name, shape) of the arrays in a flat buffer, one behind the other."""


@dataclass(frozen=True)
class ProgramRole:
    """The blocks of a rank, and the bytes of the buffers in them."""

    blocks: dict[str, Block]
    sizes: dict[str, int]
    """By buffer of a micro-batch; without a size, numbers of activations for instance, any other
    unit."""
    state: dict[str, int] = field(default_factory=dict)
    """By buffer, what is of the rank: there before the order begins, and changed by it."""
    accumulators: frozenset[str] = frozenset()
    """State that every order makes anew: sums of gradients."""
    constants: frozenset[str] = frozenset()
    """State that no order changes."""
    items: dict[str, Items] = field(default_factory=dict)
    """By buffer that is flat: what lies in it."""
    alias: dict[str, str] = field(default_factory=dict)
    """By buffer of a micro-batch that has no place of its own: the state in whose it lies, over
    what was there."""

    @classmethod
    def of(cls, blocks: Iterator[Block] | list[Block], *sizes: Any, **more: Any) -> Self:
        """The same, from blocks in their order."""
        return cls({block.name: block for block in blocks}, *sizes, **more)

    def size(self, name: str) -> int:
        """Bytes of a buffer. Raises ProgramError if it has none."""
        size = self.sizes.get(name, self.state.get(name))
        if size is None:
            raise ProgramError(f"{name} has no size; give it one, as in 'of rank 0: {name} 8 B'")
        return size

    @property
    def ops(self) -> list[Op]:
        """Of all blocks."""
        return [op for block in self.blocks.values() for op in block.ops]


@dataclass(frozen=True, repr=False)
class ProgramData:
    """Roles and orders; a `Program` is these with its readers."""

    roles: tuple[ProgramRole, ...]
    orders: tuple[Order, ...]
    """One per rank."""
    role_of: tuple[int, ...]
    """The role of each rank."""
    name: str = ""
    mesh: tuple[int, ...] = ()
    """(): all ranks along one axis."""

    @property
    def ranks(self) -> int:
        return len(self.orders)

    def role(self, rank: int) -> ProgramRole:
        """What the steps of a rank are made of."""
        return self.roles[self.role_of[rank]]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of the mesh."""
        return self.mesh or (self.ranks,)

    @cached_property
    def coordinates(self) -> tuple[tuple[int, ...], ...]:
        """Where in the mesh each rank is."""
        return tuple(product(*map(range, self.shape)))

    def peer(self, rank: int, op: Op) -> int:
        """The rank at the other end of a message."""
        axis = op["axis"]
        apart: int = op["peer"] - self.coordinates[rank][axis]
        return rank + apart * prod(self.shape[axis + 1 :])

    def members(self, rank: int, op: Op) -> tuple[int, ...]:
        """The ranks that take part in a collective of ``rank``, in their order."""
        return self.along(rank, op["axes"], op["among"])

    def along(
        self, rank: int, axes: tuple[int, ...], among: tuple[int, ...] = ()
    ) -> tuple[int, ...]:
        """The ranks that differ from ``rank`` along some axes only; or those of them by number."""
        key = axes, among
        if key not in self._groups:
            order = sorted(range(len(self.shape)), key=lambda axis: axis in axes)
            together = prod(self.shape[axis] for axis in axes)
            rows = np.arange(self.ranks).reshape(self.shape).transpose(order).reshape(-1, together)
            groups = map(tuple, (rows[:, among] if among else rows).tolist())
            self._groups[key] = {r: of for of in groups for r in of}
        return self._groups[key].get(rank, ())

    @cached_property
    def _groups(self) -> dict[Any, dict[int, tuple[int, ...]]]:
        return {}

    def sent(self, source: int, target: int) -> Iterator[tuple[Block, str, int]]:
        """What a rank sends to another, in its order: the block, the buffer and the micro-batch."""
        blocks = self.role(source).blocks
        for step in self.orders[source]:
            for op in blocks[step.block].ops:
                if op.name == "send" and self.peer(source, op) == target:
                    yield blocks[step.block], op.buffer, step.microbatch

    def __len__(self) -> int:
        """Ops of all ranks, as often as they are run."""
        long = [{name: len(b.ops) for name, b in role.blocks.items()} for role in self.roles]
        pairs = zip(self.role_of, self.orders, strict=True)
        return sum(long[of][step.block] for of, order in pairs for step in order)
