"""Layers over the ranks of a tensor-parallel group, written into a program: forward only.

    column_linear   y [.., mine] = x w[:, mine]          dx is a sum over the ranks
    row_linear      y = the sum of x[.., mine] w[mine, :]
    heads           each rank its query heads, and the kv heads that these look at
    embedding       each rank the rows of the table that it has; the sum of all

x is on all ranks, or each has its own tokens (sequence parallel): then sums are scattered along the
tokens, and what enters a column_linear is gathered. What a layer writes of its backward is a rule
on the writer's tape. (Shoeybi et al., arXiv:1909.08053; Korthikanti et al., arXiv:2205.05198.)
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.shards import deal_heads, even_shards
from tiledask.plan.program.making.writer import Gradients, ProgramWriter, Value

__all__ = ["TENSOR", "LayerWeights", "TensorLayers"]

TENSOR = 1
"""The axis of the mesh of the tensor-parallel ranks."""


class LayerWeights(Protocol):
    """Where layers have their weights from, and bring their gradients to."""

    def weight(self, unit: str, name: str) -> Value:
        """An array of a unit as it is now: forward or backward."""
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
    rows: int
    tokens: int
    """Of a row, on all ranks together."""
    sequence: bool
    """Whether each rank has tokens of its own between the layers."""
    heads: tuple[int, int, int]
    """Query heads, kv heads, columns of each, on all ranks together."""

    # -- between the ranks ----------------------------------------------------------------------

    def shape(self, width: int) -> tuple[int, int, int]:
        """Of what is between layers, here."""
        tokens = even(self.tokens, self.ranks)[self.rank] if self.sequence else self.tokens
        return self.rows, tokens, width

    def enter(self, x: Value, label: str) -> Value:
        """All tokens of ``x``."""
        if not self.sequence or self.ranks == 1:
            return x
        width = x.shape[-1]
        shape, counts = (self.rows, self.tokens, width), self._counts(width)
        return self.writer.all_gather(x, label, (TENSOR,), shape, counts=counts, dim=1, stream="tp")

    def leave(self, y: Value, label: str) -> Value:
        """The sum over the ranks of ``y``, or this rank's tokens of it."""
        if self.ranks == 1:
            return y
        width = y.shape[-1]
        told: dict[str, Any] = {"counts": self._counts(width), "stream": "tp"}
        if self.sequence:
            told |= {"dim": 1, "extents": even(self.tokens, self.ranks)}
            return self.writer.reduce_scatter(y, label, (TENSOR,), self.shape(width), **told)
        return self.writer.all_reduce(y, label, (TENSOR,), **told)

    def _counts(self, width: int) -> tuple[int, ...]:
        if self.sequence:
            return tuple(self.rows * n * width for n in even(self.tokens, self.ranks))
        return even(self.rows * self.tokens * width, self.ranks)

    def _part(self, extent: int) -> tuple[str, int, tuple[int, ...]]:
        """Which of ``extent`` indices are here."""
        return "part", TENSOR, even_shards(extent, self.ranks).counts

    # -- linear layers --------------------------------------------------------------------------

    def column_linear(
        self, x: Value, unit: str, w: str, label: str, b: str = "", turned: bool = False
    ) -> Value:
        """x w + b by columns; ``turned``: w is the transpose of what is kept."""
        whole = self.enter(x, f"{label}/forward")
        y = self._linear(whole, unit, w, b, turned)

        def rule(dy: Value) -> Gradients:
            dx = self.leave(self._dx(dy, unit, w, turned, whole.shape), f"{label}/backward")
            self._dw(dy, whole, unit, w, b, turned)
            return [(x, dx)]

        return self.writer.on_tape(y, rule)

    def row_linear(self, x: Value, unit: str, w: str, label: str, b: str = "") -> Value:
        """The sum of all ranks' x w by rows, + b."""
        made = self.leave(self._linear(x, unit, w), f"{label}/forward")
        y = made
        if b:
            y = self.writer.value("y", made.shape)
            self.writer.do("add_bias", (made, self.weights.weight(unit, b)), (y,))

        def rule(dy: Value) -> Gradients:
            whole = self.enter(dy, f"{label}/backward")
            dx = self._dx(whole, unit, w, False, x.shape)
            self._dw(whole, x, unit, w, b, False)
            return [(x, dx)]

        return self.writer.on_tape(y, rule)

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

    def _dw(self, dy: Value, x: Value, unit: str, w: str, b: str, turned: bool) -> None:
        with self.writer.gradients_of_weights():
            columns = dy.shape[-1]
            found = [self.writer.value("dw", self.weights.weight(unit, w).shape)]
            found += [self.writer.value("db", (columns,))] if b else []
            product = x.shape[-1], prod(x.shape[:-1]), columns
            self.writer.do(
                "linear_grad_weight", (dy, x), found, turned=turned or None, product=product
            )
            if w == "attention.wqkv":
                found = self._shared(found, unit)
            for name, value in zip((w, b), found, strict=False):
                self.weights.gradient(unit, name, value)

    # -- norms, sums, activations ---------------------------------------------------------------

    def norm(self, x: Value, unit: str, name: str, label: str, gated: bool) -> Value:
        """RMSNorm if ``gated``, else LayerNorm; over each token's width."""
        writer, kernel = self.writer, "rms_norm" if gated else "layer_norm"
        names = [f"{name}.w"] if gated else [f"{name}.w", f"{name}.b"]
        y, each = writer.value("y", x.shape), (*x.shape[:-1], 1)
        kept = [writer.value("inverse", each, writer.wide)]
        kept += [] if gated else [writer.value("mean", each, writer.wide)]
        writer.do(kernel, (x, *self._all_of(unit, names)), (y, *kept))

        def rule(dy: Value) -> Gradients:
            dx, width = writer.value("dx", x.shape), x.shape[-1:]
            found = [writer.value("dw", width) for _ in names]
            reads = (dy, x, *kept, *self._all_of(unit, names))
            writer.do(f"{kernel}_grad", reads, (dx, *found))
            with writer.gradients_of_weights(later=True):
                if self.sequence and self.ranks > 1:  # each rank has seen its own tokens only
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
        return self.writer.all_reduce(x, label, (TENSOR,), counts=counts, stream="tp")

    def add(self, x: Value, y: Value) -> Value:
        """x + y; the gradient of the sum is that of both."""
        total = self.writer.add(x, y)
        return self.writer.on_tape(total, lambda d: [(x, d), (y, d)])

    def through(self, kernel: str, x: Value, width: int) -> Value:
        """``kernel`` of ``x``, which its gradient needs too."""
        y = self.writer.value("y", (*x.shape[:-1], width))
        self.writer.do(kernel, (x,), (y,))

        def rule(dy: Value) -> Gradients:
            dx = self.writer.value("dx", x.shape)
            self.writer.do(f"{kernel}_grad", (dy, x), (dx,))
            return [(x, dx)]

        return self.writer.on_tape(y, rule)

    # -- attention ------------------------------------------------------------------------------

    def attention(self, qkv: Value, rotated: bool) -> Value:
        """Each query head at its kv head, among q | k | v; causal."""
        writer, (query, kv, width) = self.writer, self.heads
        of_query, of_kv = deal_heads(query, kv, self.ranks)
        n, m = of_query.counts[self.rank], of_kv.counts[self.rank]
        looks: tuple[int, ...] = ()
        if n:
            ((start, stop),), ((first, _),) = of_query.parts[self.rank], of_kv.parts[self.rank]
            looks = tuple(i // (query // kv) - first for i in range(start, stop))
        told: dict[str, Any] = {"heads": (n, m, width)}
        if rotated:
            qkv = self._rotated(qkv, told)
        rows, tokens, _ = qkv.shape
        c = writer.value("y", (rows, tokens, n * width))
        p = writer.value("p", (rows, n, tokens, tokens))
        product = rows * n, tokens, width
        writer.do("attention", (qkv,), (c, p), **told, kv_of=looks, product=product)

        def rule(dc: Value) -> Gradients:
            d = writer.value("dx", qkv.shape)
            writer.do("attention_grad", (dc, qkv, p), (d,), **told, kv_of=looks, product=product)
            return [(qkv, d)]

        return writer.on_tape(c, rule)

    def _rotated(self, qkv: Value, told: dict[str, Any]) -> Value:
        writer, angles = self.writer, Value("angles", (), 0)
        turned = writer.value("qkv", qkv.shape)
        writer.do("rotate", (qkv, angles), (turned,), **told)

        def rule(dy: Value) -> Gradients:
            dx = writer.value("dx", qkv.shape)
            writer.do("rotate_grad", (dy, angles), (dx,), **told)
            return [(qkv, dx)]

        return writer.on_tape(turned, rule)

    def _shared(self, found: list[Value], unit: str) -> list[Value]:
        """dw and db of q | k | v: of kv heads on several ranks, the sum over these."""
        query, kv, width = self.heads
        of_query, of_kv = deal_heads(query, kv, self.ranks)
        for ranks, at in of_kv.scaled(width).shared():
            if self.rank not in ranks:
                continue
            here = of_kv.scaled(width).local(self.rank, at)
            q, k = of_query.counts[self.rank] * width, of_kv.counts[self.rank] * width
            columns = tuple((o + here.start, o + here.stop) for o in (q, q + k))
            size = sum(2 * prod(d.shape[:-1]) * (here.stop - here.start) for d in found)
            flat = self.writer.value("shared", (size,))
            self.writer.do("columns", found, (flat,), columns=columns)
            total = self.writer.all_reduce(
                flat, f"{unit}/attention/shared kv/backward", (TENSOR,),
                counts=even(size, len(ranks)), among=ranks if len(ranks) < self.ranks else (),
                stream="tp",
            )  # fmt: skip
            made = [self.writer.value("dw", d.shape) for d in found]
            self.writer.do("put_columns", (total, *found), made, columns=columns)
            found = made
        return found

    # -- a decoder's block, its beginning and its end -------------------------------------------

    def block(self, x: Value, unit: str, inner: int, gated: bool) -> Value:
        """Norm, attention, +, norm, feed-forward, +."""
        b = (lambda name: "") if gated else (lambda name: name)
        a = self.norm(x, unit, "norm_1", f"{unit}/norm_1", gated)
        name = "attention.wqkv"
        qkv = self.column_linear(a, unit, name, f"{unit}/attention/wqkv", b("attention.bqkv"))
        c = self.attention(qkv, gated)
        o = self.row_linear(c, unit, "attention.wo", f"{unit}/attention/wo", b("attention.bo"))
        x = self.add(x, o)
        m = self.norm(x, unit, "norm_2", f"{unit}/norm_2", gated)
        mine = even_shards(inner, self.ranks).counts[self.rank]
        first, last = ("w_gate_up", "w_down") if gated else ("w_1", "w_2")
        z = self.column_linear(m, unit, f"mlp.{first}", f"{unit}/mlp/{first}", b("mlp.b_1"))
        g = self.through("swiglu" if gated else "gelu", z, mine)
        y = self.row_linear(g, unit, f"mlp.{last}", f"{unit}/mlp/{last}", b("mlp.b_2"))
        return self.add(x, y)

    def embedding(self, ids: Value, vocabulary: int, width: int) -> Value:
        """The rows of the table for tokens ``ids``."""
        writer, part = self.writer, self._part(vocabulary)
        table = self.weights.weight("embedding", "table")
        made = writer.value("x", (self.rows, self.tokens, width))
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
        part = self._part(self.tokens) if self.sequence else None
        y = writer.value("x", x.shape)
        writer.do("add_rows", (x, table), (y,), tokens=part)

        def rule(dy: Value) -> Gradients:
            with writer.gradients_of_weights():
                d = writer.value("dw", table.shape)
                writer.do("add_rows_grad", (dy,), (d,), tokens=part, rows=self.tokens)
                if self.sequence and self.ranks > 1:  # every rank has seen its own tokens only
                    d = self._summed_small(d, "positions/backward")
                self.weights.gradient("positions", "table", d)
            return [(x, dy)]

        return writer.on_tape(y, rule)

    def loss(self, logits: Value, targets: Value, classes: int, count: int, scaled: bool) -> Value:
        """The sum of the tokens' cross-entropies over ``count``; its gradient times the scale."""
        writer, part, tokens = self.writer, self._part(classes), (self.rows, self.tokens)
        maximum = writer.value("maximum", tokens, writer.wide)
        writer.do("largest_logit", (logits,), (maximum,))
        n = self.rows * self.tokens
        told: dict[str, Any] = {"stream": "tp"}
        if self.ranks > 1:
            maximum = writer.all_reduce(
                maximum, "cross_entropy/maximum/forward", (TENSOR,),
                counts=even(n, self.ranks), op="max", **told,
            )  # fmt: skip
        sums = writer.value("sums", (2, *tokens), writer.wide)
        writer.do("loss_sums", (logits, targets, maximum), (sums,), classes=part)
        if self.ranks > 1:
            sums = writer.all_reduce(
                sums,
                "cross_entropy/sums/forward",
                (TENSOR,),
                counts=even(2 * n, self.ranks),
                **told,
            )
        loss = writer.value("loss", (), writer.wide)
        writer.do("loss", (sums, targets), (loss,), classes=part, count=count)

        def rule(_: Value) -> Gradients:
            d = writer.value("dx", logits.shape)
            reads = [logits, targets, maximum, sums] + [Value("scale", (), 8)] * scaled
            writer.do("logits_grad", reads, (d,), classes=part, count=count)
            return [(logits, d)]

        return writer.on_tape(loss, rule)
