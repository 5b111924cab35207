"""Layers are written forward; what writes their gradients is kept on a tape, and read backwards.

    @layer
    def scaled(self, x):                   ops of the forward
        dy = yield y                       a layer gives y, and goes on with its gradient
        return [(x, dx)]                   ops of the backward, and what follows for its operands

    tape.backward({y: dy})                 the layers of the tape, from the last to the first

Where backwards are split, what makes the weights' gradients goes to a list of its own.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from math import prod
from typing import Any

from tiledask.plan.intervals import even
from tiledask.plan.program.ops import COLLECTIVES, USUAL, Items, Op, ProgramRole, buffer_of, message

__all__ = ["Tape", "Value", "Written", "layer", "needed"]


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

    def resized(self, dim: int, extent: int) -> tuple[int, ...]:
        """The shape, with ``extent`` along a dimension."""
        dim %= len(self.shape)
        return (*self.shape[:dim], extent, *self.shape[dim + 1 :])


Written = Generator[Value, Value, Sequence[tuple[Value, Value]]]
"""A layer that is written: it returns (value, its gradient), as far as that goes through it."""
Rules = list[tuple[Value | None, Callable[..., Any]]]
"""(value, what writes the gradients of what it was made of); or (None, what is done there)."""
_NEW = dict(zip(COLLECTIVES[1:], ("whole", "part", "parts", "wider", "own"), strict=True))
"""After what the result of a collective is called; of an all_reduce, after what is summed."""


def layer(write: Callable[..., Written]) -> Callable[..., Value]:
    """A method of what has a tape, as a layer: the rest of it, behind its yield, is a rule."""

    @wraps(write)
    def forward(self: Any, *given: Any, **options: Any) -> Value:
        written = write(self, *given, **options)
        y = next(written)

        def backward(dy: Value) -> Any:
            try:
                written.send(dy)
            except StopIteration as done:
                return done.value

        self.tape.rules.append((y, backward))
        return y

    return forward


class Tape:
    """The ops of one role under way, and the rules of their backward."""

    def __init__(self, itemsize: int, split: bool = False) -> None:
        self.itemsize = itemsize
        """Bytes of a number of activations."""
        self.accum_itemsize = max(itemsize, 4)
        """Of the numbers in which they are summed."""
        self.split = split
        """Whether gradients of weights are blocks of their own."""
        self.sizes: dict[str, int] = {}
        self.items: dict[str, Items] = {}
        self.alias: dict[str, str] = {}
        """By buffer that takes the place of state, or of a part of it."""
        self._names: dict[str, int] = {}
        self.rules: Rules = []
        self._later: list[Op] = []
        self.ops: list[Op] = []
        """Since the block began."""
        self.of_weights: list[Op] = []
        """Those of them for gradients of weights, if backwards are split."""

    # -- blocks -----------------------------------------------------------------------------------

    def take(self) -> list[Op]:
        """The ops of the block that ends here; another begins."""
        self.catch_up()
        ops, self.ops, self.of_weights = self.ops, [], []
        return ops

    @contextmanager
    def gradients_of_weights(self, later: bool = False) -> Iterator[None]:
        """What is written in the block only the update waits for; ``later``: behind what follows
        from the layer's gradient, a sum or a send."""
        before = self.ops
        if self.split:
            self.ops = self.of_weights
        elif later:
            self.ops = self._later
        yield
        self.ops = before

    def catch_up(self) -> None:
        """Write what was put off to come later."""
        self.ops += self._later
        self._later.clear()

    def role(
        self, blocks: Mapping[str, Iterable[Op]], state: Mapping[str, int], **more: Any
    ) -> ProgramRole:
        """The role of these blocks: of the buffers those that they write."""
        made = {name: tuple(ops) for name, ops in blocks.items()}
        used = {name for ops in made.values() for op in ops for name in op.writes}
        sizes = {name: size for name, size in self.sizes.items() if name in used}
        items = {n: i for n, i in self.items.items() if n in sizes or n in state}
        alias = {n: base for n, base in self.alias.items() if n in sizes}
        return ProgramRole(made, sizes, dict(state), items=items, alias=alias, **more)

    # -- values -----------------------------------------------------------------------------------

    def value(
        self, hint: str, shape: Sequence[int], itemsize: int | None = None, items: Items = ()
    ) -> Value:
        """A new buffer, called after ``hint``."""
        self._names[hint] = n = self._names.get(hint, -1) + 1
        if items:
            self.items[f"{hint}.{n}"] = items
        return self.named(f"{hint}.{n}", shape, itemsize or self.itemsize)

    def named(self, name: str, shape: Sequence[int], itemsize: int) -> Value:
        """A buffer of a micro-batch."""
        self.sizes[name] = prod(shape) * itemsize
        return Value(name, tuple(shape), itemsize)

    # -- ops --------------------------------------------------------------------------------------

    def do(
        self, kernel: str, reads: Sequence[Value], writes: Sequence[Value] = (), **args: Any
    ) -> None:
        """A kernel; args that are None are left out."""
        read, made = (tuple(value.name for value in values) for values in (reads, writes))
        given = tuple((name, value) for name, value in args.items() if value is not None)
        self.ops.append(Op(kernel, read, made, given))

    def make(
        self,
        kernel: str,
        reads: Sequence[Value],
        hint: str,
        shape: Sequence[int],
        itemsize: int | None = None,
        /,
        **args: Any,
    ) -> Value:
        """What a kernel makes: a new buffer, called after ``hint``."""
        y = self.value(hint, shape, itemsize)
        self.do(kernel, reads, (y,), **args)
        return y

    def comes(self, name: str, shape: Sequence[int], peer: int, axis: int = 0) -> Value:
        """A message of this name."""
        self.ops.append(message("recv", name, peer, axis))
        return self.named(name, shape, self.itemsize)

    def goes(self, x: Value, name: str, peer: int, axis: int = 0) -> None:
        """``x``, made in this block, goes under a name that other ranks know."""
        new = {x.name: name}
        self.sizes[name], x.name = self.sizes.pop(x.name), name
        for at, op in enumerate(self.ops):
            reads, writes = (tuple(new.get(n, n) for n in names) for names in (op.reads, op.writes))
            self.ops[at] = replace(op, reads=reads, writes=writes)
        self.ops.append(message("send", name, peer, axis))

    def together(
        self,
        kind: str,
        x: Value,
        label: str,
        axes: tuple[int, ...],
        shape: Sequence[int] = (),
        into: Value | None = None,
        items: Items = (),
        **args: Any,
    ) -> Value:
        """What a collective gives for ``x``: an array of ``shape``, or ``into``, state."""
        if kind == "all_reduce":
            items, shape = self.items.get(x.name, ()), x.shape
        hint = _NEW.get(kind) or x.name.partition(".")[0].partition("/")[0]
        y = into or self.value(hint, shape, x.itemsize, items)
        args["label"] = label.lstrip("/")
        given = {"axes": axes, "counts": args["counts"], "itemsize": x.itemsize}
        given |= {n: args[n] for n, usual in USUAL.items() if args.get(n, usual) != usual}
        self.ops.append(Op(kind, (x.name,), (y.name,), tuple(given.items()), args["stream"]))
        return y

    def all_reduce(
        self, x: Value, label: str, axes: tuple[int, ...], ranks: int, stream: str, **args: Any
    ) -> Value:
        """The sum over ``ranks`` ranks, in even chunks; of one rank ``x`` itself."""
        if ranks == 1:
            return x
        counts = even(x.size, ranks)
        return self.together("all_reduce", x, label, axes, counts=counts, stream=stream, **args)

    def sum_small(
        self,
        values: dict[str, Value],
        itemsize: int | None,
        label: str,
        axes: tuple[int, ...],
        ranks: int,
        stream: str,
    ) -> dict[str, Value]:
        """The sums of values by name, in one array; as of `all_reduce`."""
        if ranks == 1:
            return values
        items = tuple((name, value.shape) for name, value in values.items())
        flat = self.value("packed", (sum(v.size for v in values.values()),), itemsize, items)
        self.do("pack", list(values.values()), (flat,))
        total = self.all_reduce(flat, label, axes, ranks, stream)
        return {n: Value(f"{total.name}[{n}]", shape, total.itemsize) for n, shape in items}

    # -- backwards --------------------------------------------------------------------------------

    def backward(self, gradients: Mapping[Value, Value], since: int = 0) -> dict[Value, Value]:
        """Write the backward of what is on the tape, from rule ``since`` on, and take it off; the
        gradients of all that it began with."""
        found, rules = dict(gradients), self.rules[since:]
        del self.rules[since:]
        for y, rule in reversed(rules):
            if y is None:
                rule(found)
            elif y in found:
                self.catch_up()
                for x, dx in rule(found.pop(y)):
                    before = found.get(x)
                    both = before and self.make("add", (before, dx), "sum", x.shape)
                    found[x] = both or dx
        return found


def needed(blocks: Sequence[list[Op]], state: Mapping[str, int]) -> None:
    """Leave out, in place, what makes buffers that nothing reads."""
    read: set[str] = {*state}
    for block in reversed(blocks):
        kept = []
        for op in reversed(block):
            writes = [buffer_of(name) for name in op.writes]
            if not writes or not read.isdisjoint(writes):
                read |= {buffer_of(name) for name in op.reads}
                while len(writes) > 1 and writes[-1] not in read:
                    writes.pop()  # what a kernel makes besides
                kept.append(replace(op, writes=op.writes[: len(writes)]))
        block[:] = reversed(kept)
