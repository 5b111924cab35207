"""What every rank does, op by op, made from shapes alone.

    rank 0: 0F.0 0F.1 0B.0 0B.1        the order of a rank: steps, each a block for a micro-batch;
    rank 1: 1F.0 1B.0 1F.1 1B.1        what a schedule calls an action

    block 0F of rank 0                 a block is written once, however many micro-batches and ranks
      x1 kept0 = do forward
      send x1 to 1 @to_1               @ a stream: each goes on in its own order

A buffer is of one micro-batch: written once, and let go after the last op that reads it. State
(weights, moments) is of the rank: it is there before, may be written again, and stays. An op names
axes of the mesh and coordinates along them, so that ranks with blocks of equal shapes share a role.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

__all__ = ["COLLECTIVES", "COMPUTE_STREAM", "Blocks", "Items", "Op", "Order"]
__all__ += ["USUAL", "ProgramRole", "Step", "action_of", "add_block", "buffer_of", "message"]

COMPUTE_STREAM = "compute"
COLLECTIVES = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "halo_exchange", "halo_reduce"),
)
OP_KINDS = {"send": "message", "recv": "message", "stop": "stop"}
OP_KINDS |= dict.fromkeys(COLLECTIVES, "collective")
USUAL: dict[str, Any] = {
    "axis": 0, "work": 0, "label": "", "among": (), "dim": 0, "extents": (), "op": "sum",
    "split_dim": 0, "before": 0, "after": 0,
}  # fmt: skip
"""Values that args have where an op does not say them."""


@dataclass(frozen=True, slots=True)
class Op:
    """A kernel, a message, a collective of a group, or "stop".

    >>> message("recv", "x1", 0), Op("stop", ("factor.0",))
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
    of a collective   of all ranks that differ along some axes of the mesh, or among these by number
        counts        numbers of each member's chunk; of an all_to_all n*s + d of what goes from s
                      to d; each of itemsize bytes. label: of its records
        dim           along which chunks are joined or cut, extents of theirs along it; split_dim:
                      along which an all_to_all cuts what is brought
        op            of what is added up: "sum" or "max"
        before, after    rows that a member gets before and behind its own (halos)"""
    stream: str = COMPUTE_STREAM

    def __getitem__(self, arg: str) -> Any:
        """The value of an arg; the usual one where the op does not say it."""
        return next((value for name, value in self.args if name == arg), USUAL.get(arg))

    @property
    def buffer(self) -> str:
        """What a message carries, or "stop" looks at."""
        return (*self.reads, *self.writes)[0]

    @property
    def kind(self) -> str:
        """ "kernel", "message", "collective" or "stop"."""
        return OP_KINDS.get(self.name, "kernel")

    def __repr__(self) -> str:
        args = dict(self.args)
        words = [f"{' '.join(self.writes)} ="] if self.writes else []
        words += ["do"] * (self.kind == "kernel") + [self.name]
        words += ["if not"] * (self.name == "stop") + [*self.reads]
        if self.kind == "message":
            words.append(f"{'to' if self.name == 'send' else 'from'} {args.pop('peer')}")
            words += [f"along {args.pop('axis')}"] if "axis" in args else []
        words += [str(args)] if args else []
        words += [f"@{self.stream}"] if self.stream != COMPUTE_STREAM else []
        return " ".join(words)


def message(kind: str, buffer: str, peer: int, axis: int = 0, stream: str = "") -> Op:
    """A "send" to another rank, or a "recv" of the same buffer and micro-batch from one."""
    way, reads, writes = ("to", (buffer,), ()) if kind == "send" else ("from", (), (buffer,))
    args = ("peer", peer), ("axis", axis)
    return Op(kind, reads, writes, args if axis else args[:1], stream or f"{way}_{peer}")


def buffer_of(name: str) -> str:
    """The buffer in which an array lies: "weights/head" of "weights/head[norm.w]"."""
    return name.partition("[")[0]


Blocks = dict[str, tuple[Op, ...]]
"""By name, ops for one micro-batch. 0F is the forward of stage 0; 0F' that of another pipeline,
0F:2 that of 2 rows; what no stage does is a word."""


@cache
def action_of(block: str) -> tuple[str, int]:
    """(kind, stage) of a block of this name; or the word itself, and -1.

    >>> action_of("12F:3"), action_of("update")
    (('F', 12), ('update', -1))
    """
    found = re.match(r"(\d+)([FBIW])", block)
    return (found[2], int(found[1])) if found else (block, -1)


def add_block(blocks: Blocks, name: str, ops: Iterable[Op], rows: str = "") -> str:
    """The name of a block with these ``ops``: one ' more for each that differs in its peers."""
    ops = tuple(ops)
    while blocks.setdefault(name + rows, ops) != ops:
        name += "'"
    return name + rows


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

    blocks: Blocks
    sizes: dict[str, int]
    """By buffer of a micro-batch; in bytes or, of a schedule's program, any other unit."""
    state: dict[str, int] = field(default_factory=dict)
    """By buffer, what is of the rank, before and after."""
    accumulators: frozenset[str] = frozenset()
    """State that every order makes anew: sums of gradients."""
    constants: frozenset[str] = frozenset()
    """State that no order changes."""
    items: dict[str, Items] = field(default_factory=dict)
    """By buffer that is flat: what lies in it."""
    alias: dict[str, str] = field(default_factory=dict)
    """By buffer of a micro-batch without a place of its own: the state over which it lies."""
