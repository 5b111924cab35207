"""Layers are written forward; what writes their gradients is kept on a tape, and read backwards.

    y = linear(writer, x, ...)       instructions, and on the tape: how dx follows from dy
    writer.backward({y: dy})         the rules of the tape, from the last to the first

Where backwards are split, what makes the weights' gradients goes to a list of its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tiledask.plan.program.instructions import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Collective,
    Do,
    HaloExchange,
    HaloReduce,
    Instruction,
    Items,
    Reduce,
    ReduceScatter,
    buffer_of,
)

__all__ = ["Gradients", "ProgramWriter", "Value"]


@dataclass(eq=False, slots=True)
class Value:
    """An array of a rank while its program is written."""

    name: str
    """Of its buffer; with [item] if it lies in a flat one."""
    shape: tuple[int, ...]
    itemsize: int

    @property
    def size(self) -> int:
        """How many numbers."""
        return prod(self.shape)


Gradients = Sequence[tuple[Value, Value]]
"""(value, its gradient), as far as it goes through one layer."""
_Rule = Callable[[Value], Gradients]
Tape = list[tuple[Value | None, Callable[..., Any]]]
"""(value, what writes the gradients of what it was made of), or (None, what is done there)."""


class ProgramWriter:
    """The instructions of one role under way."""

    def __init__(self, itemsize: int, split: bool = False) -> None:
        self.itemsize = itemsize
        """Bytes of a number of activations."""
        self.wide = max(itemsize, 4)
        """Of the numbers in which they are summed."""
        self.split = split
        """Whether gradients of weights are parts of their own."""
        self.nbytes: dict[str, int] = {}
        self.items: dict[str, Items] = {}
        self.within: dict[str, str] = {}
        self._names: dict[str, int] = {}
        self._tape: Tape = []
        self._later: list[Instruction] = []
        self.written: list[Instruction] = []
        """Since the part began."""
        self.of_weights: list[Instruction] = []
        """Those of them for gradients of weights, if backwards are split."""

    # -- parts ----------------------------------------------------------------------------------

    def part(self) -> None:
        """A part begins."""
        self.written, self.of_weights = [], []

    @contextmanager
    def gradients_of_weights(self, later: bool = False) -> Iterator[None]:
        """What is written in the block nobody waits for but the update; ``later``: so it comes
        behind what follows at once from the layer's gradient, a sum or a send."""
        before = self.written
        if self.split:
            self.written = self.of_weights
        elif later:
            self.written = self._later
        yield
        self.written = before

    def _catch_up(self) -> None:
        self.written += self._later
        self._later.clear()

    # -- values ---------------------------------------------------------------------------------

    def value(
        self, hint: str, shape: Sequence[int], itemsize: int | None = None, items: Items = ()
    ) -> Value:
        """A new buffer of a frame, called after ``hint``."""
        self._names[hint] = n = self._names.get(hint, -1) + 1
        made = Value(f"{hint}.{n}", tuple(shape), itemsize or self.itemsize)
        return self.named(made, items)

    def named(self, value: Value, items: Items = ()) -> Value:
        """``value``, a buffer of a frame."""
        self.nbytes[value.name] = value.size * value.itemsize
        if items:
            self.items[value.name] = items
        return value

    def put_within(self, value: Value, kept: Value) -> Value:
        """``value``, a buffer that takes the place of ``kept``, which stays, or of a part of it."""
        self.within[value.name] = self.within.get(kept.name, kept.name)
        return value

    def rename(self, value: Value, name: str) -> None:
        """Call a buffer of this part by a name that other ranks or parts know."""
        old, value.name = value.name, name
        self.nbytes[name] = self.nbytes.pop(old)

        def new(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(name if n == old else n for n in names)

        for at, each in enumerate(self.written):
            if isinstance(each, Do):
                self.written[at] = replace(each, reads=new(each.reads), writes=new(each.writes))
            elif isinstance(each, Collective):
                buffer, result = new((each.buffer, each.result))
                self.written[at] = replace(each, buffer=buffer, result=result)

    # -- instructions ---------------------------------------------------------------------------

    def do(
        self, kernel: str, reads: Sequence[Value], writes: Sequence[Value] = (), **options: Any
    ) -> None:
        """A kernel; ``product`` among its options is for those who price it."""
        told = tuple((name, value) for name, value in options.items() if value is not None)
        read, made = (tuple(value.name for value in values) for values in (reads, writes))
        self.written.append(Do(kernel, read, made, options=told))

    def all_reduce(self, x: Value, label: str, axes: tuple[int, ...], **told: Any) -> Value:
        """The sum over the ranks along ``axes``."""
        y = self.value(x.name.partition(".")[0].partition("/")[0], x.shape, x.itemsize)
        if found := self.items.get(x.name):
            self.items[y.name] = found
        self._collective(AllReduce, x, y, label, axes, **told)
        return y

    def all_gather(
        self, x: Value, label: str, axes: tuple[int, ...], shape: Sequence[int], **told: Any
    ) -> Value:
        """All that the ranks have, an array of ``shape``."""
        y = self.value("whole", shape, x.itemsize, told.pop("items", ()))
        self._collective(AllGather, x, y, label, axes, **told)
        return y

    def gather_into(
        self, x: Value, kept: Value, label: str, axes: tuple[int, ...], **told: Any
    ) -> None:
        """All that the ranks have, in the place of what stays."""
        self._collective(AllGather, x, kept, label, axes, **told)

    def reduce_scatter(
        self, x: Value, label: str, axes: tuple[int, ...], shape: Sequence[int], **told: Any
    ) -> Value:
        """This rank's part, an array of ``shape``, of the sum."""
        y = self.value("part", shape, x.itemsize)
        self._collective(ReduceScatter, x, y, label, axes, **told)
        return y

    def all_to_all(
        self, x: Value, label: str, axes: tuple[int, ...], shape: Sequence[int], **told: Any
    ) -> Value:
        """This rank's parts, an array of ``shape``, of what all have."""
        y = self.value("parts", shape, x.itemsize)
        self._collective(AllToAll, x, y, label, axes, **told)
        return y

    def halo(
        self, x: Value, label: str, axes: tuple[int, ...], shape: Sequence[int], **told: Any
    ) -> Value:
        """Rows with those of others, an array of ``shape``; or, ``back``, sums of the own rows."""
        back = told.pop("back", False)
        y = self.value("own" if back else "wider", shape, x.itemsize)
        self._collective(HaloReduce if back else HaloExchange, x, y, label, axes, **told)
        return y

    def broadcast(
        self, x: Value | None, y: Value, label: str, axes: tuple[int, ...], **told: Any
    ) -> Value:
        """``y``: on all what the root has, which is ``x`` there and None elsewhere."""
        self._collective(Broadcast, x, y, label, axes, shape=y.shape, **told)
        return y

    def reduce(
        self, x: Value, y: Value | None, label: str, axes: tuple[int, ...], **told: Any
    ) -> None:
        """``y``: on the root the sum, and None elsewhere."""
        self._collective(Reduce, x, y, label, axes, **told)

    def _collective(
        self,
        kind: type[Collective],
        x: Value | None,
        y: Value | None,
        label: str,
        axes: tuple[int, ...],
        **told: Any,
    ) -> None:
        brought, made = (value.name if value else "" for value in (x, y))
        size = (x or y).itemsize  # type: ignore[union-attr]  # one of both is there
        self.written.append(kind(brought, made, axes, itemsize=size, label=label, **told))

    # -- backwards ------------------------------------------------------------------------------

    def on_tape(self, y: Value, rule: _Rule) -> Value:
        """``y``, of which ``rule`` writes the gradients of what it was made of, from its own."""
        self._tape.append((y, rule))
        return y

    def at_backward(self, write: Callable[[dict[Value, Value]], None]) -> None:
        """Do this where the backward comes here, with the gradients that it has."""
        self._tape.append((None, write))

    def take_tape(self, since: int = 0) -> Tape:
        """What is on the tape, from entry ``since`` on, taken off."""
        tape, self._tape = self._tape[since:], self._tape[:since]
        return tape

    @property
    def taped(self) -> int:
        """How many entries the tape has."""
        return len(self._tape)

    def backward(self, tape: Tape, gradients: Mapping[Value, Value]) -> dict[Value, Value]:
        """Write the backward of a tape; the gradients of all that it began with."""
        found = dict(gradients)
        for y, rule in reversed(tape):
            if y is None:
                rule(found)
            elif y in found:
                self._catch_up()
                for x, dx in rule(found.pop(y)):
                    found[x] = self.add(found[x], dx) if x in found else dx
        self._catch_up()
        return found

    def add(self, x: Value, y: Value) -> Value:
        """x + y, rounded once; nothing is left on the tape."""
        total = self.value("sum", x.shape)
        self.do("add", (x, y), (total,))
        return total


def needed(parts: Sequence[list[Instruction]], stays: Mapping[str, int]) -> None:
    """Leave out, in place, what makes buffers that nothing reads. The parts are in their order."""
    read: set[str] = set()
    for part in reversed(parts):
        kept = []
        for each in reversed(part):
            writes = [buffer_of(name) for name in each.writes]
            if not writes or any(name in read or name in stays for name in writes):
                read |= {buffer_of(name) for name in each.reads}
                while len(writes) > 1 and writes[-1] not in read and writes[-1] not in stays:
                    writes.pop()  # what a kernel makes besides
                if isinstance(each, Do):
                    each = replace(each, writes=each.writes[: len(writes)])
                kept.append(each)
        part[:] = reversed(kept)
