"""Layers over the ranks of a tensor-parallel group, written into a program: forward only.

    column_linear   y [.., mine] = x w[:, mine]          dx is a sum over the ranks
    row_linear      y = the sum of x[.., mine] w[mine, :]
    heads           each rank its query heads, and the kv heads that these look at
    embedding       each rank the rows of the table that it has; the sum of all

x is on all ranks, or each has its own tokens (sequence parallel): then sums are scattered along the
tokens, and what enters a column_linear is gathered. What a layer writes of its backward is a rule
on the writer's tape. (Shoeybi et al., arXiv:1909.08053; Korthikanti et al., arXiv:2205.05198.)
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.shards import deal_heads
from tiledask.plan.program.making.writer import Gradients, ProgramWriter, Value

__all__ = ["TENSOR", "LayerWeights", "TensorLayers"]

TENSOR = 1
"""The axis of the mesh of the tensor-parallel ranks."""


class LayerWeights(Protocol):
    """Where layers have their weights from, and bring their gradients to."""

    def weight(self, unit: str, name: str) -> Value:
        """An array of a unit as it is now: forward or backward."""
        ...

    def has(self, unit: str, name: str) -> bool:
        """Whether a unit has such an array."""
        ...

    def gradient(self, unit: str, name: str, g: Value) -> None:
        """A gradient is there."""
        ...

    def scope(self, unit: str, when: str, again: bool) -> AbstractContextManager[None]:
        """The block is a unit's forward; ``again``: whether its backward needs weights."""
        ...


@dataclass(frozen=True)
class TensorLayers:
    """The layers of some rows on one rank of a tensor-parallel group."""

    writer: ProgramWriter
    weights: LayerWeights
    ranks: int
    rank: int
    """Whose shapes are written."""
    tokens: tuple[int, tuple[int, ...]] | None = None
    """(the dimension, how many each rank has) where each has tokens of its own between layers."""
    heads: tuple[int, int, int] = (1, 1, 1)
    """Query heads, kv heads, columns of each, on all ranks together."""
    regather: bool = False
    """Whether tokens that were gathered are let go, and gathered again in the backward."""
    selective: bool = False
    """Whether the attention's probabilities are let go, and computed again in the backward."""
    axis: int = TENSOR
    """Of the mesh, along which the ranks of the group differ."""

    # -- between the ranks ----------------------------------------------------------------------

    @property
    def apart(self) -> bool:
        """Whether ranks have tokens of their own."""
        return self.tokens is not None and self.ranks > 1

    def enter(self, x: Value, label: str) -> Value:
        """All tokens of ``x``."""
        if self.tokens is None or self.ranks == 1:
            return x
        dim, extents = self.tokens
        shape = (*x.shape[:dim], sum(extents), *x.shape[dim + 1 :])
        told: dict[str, Any] = {"counts": self._counts(shape), "dim": dim, "stream": "tp"}
        return self.writer.all_gather(x, label, (self.axis,), shape, **told)

    def leave(self, y: Value, label: str) -> Value:
        """The sum over the ranks of ``y``, or this rank's tokens of it."""
        if self.ranks == 1:
            return y
        told: dict[str, Any] = {"counts": self._counts(y.shape), "stream": "tp"}
        if self.tokens is None:
            return self.writer.all_reduce(y, label, (self.axis,), **told)
        dim, extents = self.tokens
        shape = (*y.shape[:dim], extents[self.rank], *y.shape[dim + 1 :])
        told |= {"dim": dim, "extents": extents}
        return self.writer.reduce_scatter(y, label, (self.axis,), shape, **told)

    def _counts(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if self.tokens is None:
            return even(prod(shape), self.ranks)
        dim, extents = self.tokens
        return tuple(prod(shape[:dim] + shape[dim + 1 :]) * n for n in extents)

    # -- linear layers --------------------------------------------------------------------------

    def column_linear(
        self,
        x: Value,
        unit: str,
        names: Sequence[str],
        labels: Sequence[str],
        turned: bool = False,
        by_heads: bool = False,
    ) -> Value:
        """x w + b by columns, of one w or of several, side by side; ``turned``: w is the
        transpose of what is kept; ``by_heads``: some columns are on several ranks."""
        writer = self.writer
        wholes = [self.enter(x, f"{label}/forward") for label in labels]
        ys = [
            self._linear(whole, unit, w, self._bias(unit, w), turned)
            for whole, w in zip(wholes, names, strict=True)
        ]
        y = self._joined(ys)

        def rule(dy: Value) -> Gradients:
            found, of_x = dict[str, Value](), []
            for d, whole, w, label in zip(self._cut(dy, ys), wholes, names, labels, strict=True):
                again = self.enter(x, f"{label}/backward") if self.regather else whole
                of_x += [
                    (x, self.leave(self._dx(d, unit, w, turned, again.shape), f"{label}/backward"))
                ]
                with writer.gradients_of_weights():
                    found |= self._dw(d, again, unit, w, self._bias(unit, w), turned)
            with writer.gradients_of_weights():
                if by_heads:
                    found = self._shared(found, unit)
                for name, g in found.items():
                    self.weights.gradient(unit, name, g)
            return of_x

        return writer.on_tape(y, rule)

    def row_linear(self, x: Value, unit: str, w: str, label: str) -> Value:
        """The sum of all ranks' x w by rows, + b."""
        made, b = self.leave(self._linear(x, unit, w), f"{label}/forward"), self._bias(unit, w)
        y = made
        if b:
            y = self.writer.value("y", made.shape)
            self.writer.do("add_bias", (made, self.weights.weight(unit, b)), (y,))

        def rule(dy: Value) -> Gradients:
            whole = self.enter(dy, f"{label}/backward")
            dx = self._dx(whole, unit, w, False, x.shape)
            with self.writer.gradients_of_weights():
                for name, g in self._dw(whole, x, unit, w, b, False).items():
                    self.weights.gradient(unit, name, g)
            return [(x, dx)]

        return self.writer.on_tape(y, rule)

    def _bias(self, unit: str, w: str) -> str:
        """The name of the bias of ``w``; none if the unit has none."""
        room, dot, name = w.rpartition(".")
        b = f"{room}{dot}b{name[1:]}"
        return b if self.weights.has(unit, b) else ""

    def _joined(self, parts: Sequence[Value]) -> Value:
        """One behind the other, by columns."""
        if len(parts) == 1:
            return parts[0]
        y = self.writer.value("y", (*parts[0].shape[:-1], sum(part.shape[-1] for part in parts)))
        self.writer.do("join", parts, (y,))
        return y

    def _cut(self, dy: Value, parts: Sequence[Value]) -> Sequence[Value]:
        """The gradients of what was joined."""
        if len(parts) == 1:
            return [dy]
        found = [self.writer.value("dy", part.shape) for part in parts]
        widths = tuple(part.shape[-1] for part in parts)
        self.writer.do("cut", (dy,), found, widths=widths)
        return found

    def _linear(self, x: Value, unit: str, w: str, b: str = "", turned: bool = False) -> Value:
        weight = self.weights.weight(unit, w)
        y = self.writer.value("y", (*x.shape[:-1], weight.shape[0 if turned else 1]))
        reads = [x, weight] + ([self.weights.weight(unit, b)] if b else [])
        product = prod(x.shape[:-1]), x.shape[-1], y.shape[-1]
        self.writer.do("linear", reads, (y,), turned=turned or None, product=product)
        return y

    def _dx(self, dy: Value, unit: str, w: str, turned: bool, shape: tuple[int, ...]) -> Value:
        dx = self.writer.value("dx", shape)
        reads, product = (
            (dy, self.weights.weight(unit, w)),
            (prod(dy.shape[:-1]), dy.shape[-1], shape[-1]),
        )
        self.writer.do("linear_grad_input", reads, (dx,), turned=turned or None, product=product)
        return dx

    def _dw(self, dy: Value, x: Value, unit: str, w: str, b: str, turned: bool) -> dict[str, Value]:
        """The gradients of w and b, by name."""
        columns = dy.shape[-1]
        found = {w: self.writer.value("dw", self.weights.weight(unit, w).shape)}
        found |= {b: self.writer.value("db", (columns,))} if b else {}
        product = x.shape[-1], prod(x.shape[:-1]), columns
        writes = tuple(found.values())
        self.writer.do(
            "linear_grad_weight", (dy, x), writes, turned=turned or None, product=product
        )
        return found

    # -- norms, sums, activations ---------------------------------------------------------------

    def norm(
        self, x: Value, unit: str, name: str, label: str, gated: bool, eps: float | None = None
    ) -> Value:
        """RMSNorm if ``gated``, else LayerNorm; over each token's width."""
        writer, kernel = self.writer, "rms_norm" if gated else "layer_norm"
        names = [f"{name}.{kind}" for kind in ("w" if gated else "wb")]
        names = [n for n in names if self.weights.has(unit, n)]
        y, each = writer.value("y", x.shape), (*x.shape[:-1], 1)
        kept = [writer.value("inverse", each, writer.wide)]
        kept += [] if gated else [writer.value("mean", each, writer.wide)]
        writer.do(kernel, (x, *self._all_of(unit, names)), (y, *kept), eps=eps)

        def rule(dy: Value) -> Gradients:
            dx, width = writer.value("dx", x.shape), x.shape[-1:]
            found = [writer.value("dw", width) for _ in names]
            reads = (dy, x, *kept, *self._all_of(unit, names))
            writer.do(f"{kernel}_grad", reads, (dx, *found))
            with writer.gradients_of_weights(later=True):
                if self.apart:  # each rank has seen its own tokens only
                    items = tuple((n, width) for n in names)
                    packed = writer.value("packed", (len(names) * width[0],), items=items)
                    writer.do("pack", found, (packed,))
                    total = self._summed_small(packed, f"{label}/backward")
                    found = [Value(f"{total.name}[{n}]", width, total.itemsize) for n in names]
                for n, g in zip(names, found, strict=True):
                    self.weights.gradient(unit, n, g)
            return [(x, dx)]

        return writer.on_tape(y, rule)

    def _all_of(self, unit: str, names: list[str]) -> list[Value]:
        return [self.weights.weight(unit, name) for name in names]

    def _summed_small(self, x: Value, label: str) -> Value:
        counts = even(x.size, self.ranks)
        return self.writer.all_reduce(x, label, (self.axis,), counts=counts, stream="tp")

    def add(self, x: Value, y: Value) -> Value:
        """x + y; the gradient of the sum is that of both."""
        total = self.writer.add(x, y)
        return self.writer.on_tape(total, lambda d: [(x, d), (y, d)])

    def through(self, kernel: str, x: Value, width: int) -> Value:
        """``kernel`` of ``x``; its gradient needs x too, or of relu what came out."""
        y = self.writer.value("y", (*x.shape[:-1], width))
        self.writer.do(kernel, (x,), (y,))
        kept = y if kernel == "relu" else x

        def rule(dy: Value) -> Gradients:
            dx = self.writer.value("dx", x.shape)
            self.writer.do(f"{kernel}_grad", (dy, kept), (dx,))
            return [(x, dx)]

        return self.writer.on_tape(y, rule)

    # -- attention ------------------------------------------------------------------------------

    def attention(
        self, qkv: Value, angles: Value | None, causal: bool = True, scale: float | None = None
    ) -> Value:
        """Each query head at its kv head, among q | k | v; q and k turned by ``angles``."""
        writer, (query, kv, width) = self.writer, self.heads
        of_query, of_kv = deal_heads(query, kv, self.ranks)
        n, m = of_query.counts[self.rank], of_kv.counts[self.rank]
        looks: tuple[int, ...] = ()
        if n:
            ((start, stop),), ((first, _),) = of_query.parts[self.rank], of_kv.parts[self.rank]
            looks = tuple(i // (query // kv) - first for i in range(start, stop))
        told: dict[str, Any] = {"heads": (n, m, width)}
        if angles:
            qkv = self._rotated(qkv, angles, told)
        told |= {"kv_of": looks, "causal": None if causal else False, "scale": scale}
        rows, tokens, _ = qkv.shape
        c = writer.value("y", (rows, tokens, n * width))
        kept = writer.value("p", (rows, n, tokens, tokens))
        product = rows * n, tokens, width
        writer.do("attention", (qkv,), (c, kept), **told, product=product)

        def rule(dc: Value) -> Gradients:
            d, p = writer.value("dx", qkv.shape), kept
            if self.selective:
                p = writer.value("p", kept.shape)
                writer.do("attention_weights", (qkv,), (p,), **told, product=product)
            back = told | {"causal": None, "product": product}
            back["work"] = p.size * p.itemsize  # p's gradient, over which that of the scores goes
            writer.do("attention_grad", (dc, qkv, p), (d,), **back)
            return [(qkv, d)]

        return writer.on_tape(c, rule)

    def _rotated(self, qkv: Value, angles: Value, told: dict[str, Any]) -> Value:
        writer, told = self.writer, told.copy()
        turned = writer.value("qkv", qkv.shape)
        writer.do("rotate", (qkv, angles), (turned,), **told)

        def rule(dy: Value) -> Gradients:
            dx = writer.value("dx", qkv.shape)
            writer.do("rotate_grad", (dy, angles), (dx,), **told)
            return [(qkv, dx)]

        return writer.on_tape(turned, rule)

    def _shared(self, found: dict[str, Value], unit: str) -> dict[str, Value]:
        """``found`` of q | k | v, or of each apart: of kv heads on several ranks, the sum."""
        query, kv, width = self.heads
        of_query, of_kv = deal_heads(query, kv, self.ranks)
        q, k = of_query.counts[self.rank] * width, of_kv.counts[self.rank] * width
        one = len({name.rpartition(".")[2][1:] for name in found}) == 1
        names = [n for kind in "wb" for n in found if n.rpartition(".")[2][0] == kind]
        names = names if one else [n for n in names if n[-1] in "kv"]
        for ranks, at in of_kv.scaled(width).shared():
            if self.rank not in ranks:
                continue
            here, mine = of_kv.scaled(width).local(self.rank, at), [found[n] for n in names]
            columns = tuple((o + here.start, o + here.stop) for o in ((q, q + k) if one else (0,)))
            each = len(columns) * (here.stop - here.start)
            size = sum(each * prod(d.shape[:-1]) for d in mine)
            flat = self.writer.value("shared", (size,))
            self.writer.do("columns", mine, (flat,), columns=columns)
            total = self.writer.all_reduce(
                flat, _label(unit, "attention/shared kv/backward"), (self.axis,),
                counts=even(size, len(ranks)), among=ranks if len(ranks) < self.ranks else (),
                stream="tp",
            )  # fmt: skip
            made = [self.writer.value("dw", d.shape) for d in mine]
            self.writer.do("put_columns", (total, *mine), made, columns=columns)
            found = found | dict(zip(names, made, strict=True))
        return found

    # -- a decoder's block, its beginning and its end -------------------------------------------

    def block(
        self,
        x: Value,
        angles: Value | None,
        unit: str,
        gated: bool,
        causal: bool = True,
        eps: float | None = None,
    ) -> Value:
        """Norm, attention, +, norm, feed-forward, +."""
        a = self.norm(x, unit, "norm_1", _label(unit, "norm_1"), gated, eps)
        x = self.add(x, self.self_attention(a, angles, unit, causal))
        m = self.norm(x, unit, "norm_2", _label(unit, "norm_2"), gated, eps)
        return self.add(x, self.feed_forward(m, unit, "swiglu" if gated else "gelu"))

    def self_attention(
        self,
        x: Value,
        angles: Value | None,
        unit: str,
        causal: bool = True,
        scale: float | None = None,
    ) -> Value:
        """Projections to heads, in one matrix or three, attention, and the projection back."""
        qkv = self._into(x, unit, "attention", ("wqkv",), ("wq", "wk", "wv"), by_heads=True)
        c = self.attention(qkv, angles, causal, scale)
        return self.row_linear(c, unit, "attention.wo", _label(unit, "attention/wo"))

    def feed_forward(self, x: Value, unit: str, kernel: str) -> Value:
        """By columns, an activation or SwiGLU's gate, and by rows."""
        gated = kernel == "swiglu"
        last = "w_down" if gated else "w_2"
        one, several = (("w_gate_up",), ("w_gate", "w_up")) if gated else (("w_1",), ("w_1",))
        z = self._into(x, unit, "mlp", one, several)
        g = self.through(kernel, z, self.weights.weight(unit, f"mlp.{last}").shape[0])
        return self.row_linear(g, unit, f"mlp.{last}", _label(unit, f"mlp/{last}"))

    def _into(
        self,
        x: Value,
        unit: str,
        room: str,
        one: Sequence[str],
        several: Sequence[str],
        by_heads: bool = False,
    ) -> Value:
        """A `column_linear` of the layer called ``room``, by one matrix if it has that."""
        names = one if self.weights.has(unit, f"{room}.{one[0]}") else several
        labels = [_label(unit, f"{room}/{name}") for name in names]
        names = [f"{room}.{name}" for name in names]
        return self.column_linear(x, unit, names, labels, by_heads=by_heads)

    def embedding(self, ids: Value, counts: tuple[int, ...]) -> Value:
        """The rows of the table for tokens ``ids``; ``counts``: rows that each rank has."""
        writer, part = self.writer, ("part", self.axis, counts)
        table = self.weights.weight("embedding", "table")
        made = writer.value("x", (*ids.shape, table.shape[-1]))
        writer.do("embedding", (ids, table), (made,), rows=part)
        y = self.leave(made, "embedding/forward")

        def rule(dy: Value) -> Gradients:
            with writer.gradients_of_weights():
                whole = self.enter(dy, "embedding/backward")
                d = writer.value("dw", table.shape)
                writer.do("embedding_grad", (whole, ids), (d,), rows=part)
                self.weights.gradient("embedding", "table", d)
            return []

        return writer.on_tape(y, rule)

    def positions(self, x: Value) -> Value:
        """x + the row of the table for each token's place."""
        writer, table = self.writer, self.weights.weight("positions", "table")
        part = ("part", self.axis, self.tokens[1]) if self.tokens else None
        y = writer.value("x", x.shape)
        writer.do("add_rows", (x, table), (y,), tokens=part)

        def rule(dy: Value) -> Gradients:
            with writer.gradients_of_weights():
                d = writer.value("dw", table.shape)
                writer.do("add_rows_grad", (dy,), (d,), tokens=part, rows=table.shape[0])
                if self.apart:  # every rank has seen its own tokens only
                    d = self._summed_small(d, "positions/backward")
                self.weights.gradient("positions", "table", d)
            return [(x, dy)]

        return writer.on_tape(y, rule)

    def loss(
        self,
        logits: Value,
        targets: Value,
        counts: tuple[int, ...],
        count: float,
        smoothing: float = 0.0,
        ignore: int = -100,
    ) -> Value:
        """The sum of the tokens' cross-entropies over ``count``; its gradient times that of the
        loss, if this is another value. ``counts``: classes that each rank has."""
        writer, tokens, n = self.writer, targets.shape, targets.size
        rule_of: dict[str, Any] = {"classes": ("part", self.axis, counts)}
        rule_of |= {"smoothing": smoothing or None, "ignore": None if ignore == -100 else ignore}
        maximum = writer.value("maximum", tokens, writer.wide)
        writer.do("largest_logit", (logits,), (maximum,))
        told: dict[str, Any] = {"stream": "tp"}
        if self.ranks > 1:
            maximum = writer.all_reduce(
                maximum, "cross_entropy/maximum/forward", (self.axis,),
                counts=even(n, self.ranks), op="max", **told,
            )  # fmt: skip
        sums = writer.value("sums", (3 if smoothing else 2, *tokens), writer.wide)
        writer.do("loss_sums", (logits, targets, maximum), (sums,), **rule_of)
        if self.ranks > 1:
            sums = writer.all_reduce(
                sums,
                "cross_entropy/sums/forward",
                (self.axis,),
                counts=even(sums.size, self.ranks),
                **told,
            )
        loss = writer.value("loss", (), writer.wide)
        writer.do("loss", (sums, targets), (loss,), **rule_of, count=count)

        def rule(dloss: Value) -> Gradients:
            d = writer.value("dx", logits.shape)
            reads = [logits, targets, maximum, sums] + [dloss] * (dloss is not loss)
            writer.do("logits_grad", reads, (d,), **rule_of, count=count)
            return [(logits, d)]

        return writer.on_tape(loss, rule)


def _label(unit: str, name: str) -> str:
    """Of a collective, as in the records of a run; ``unit`` may be without a name."""
    return f"{unit}/{name}" if unit else name
