"""Layers over the ranks of a tensor-parallel group, written into a program.

    column_linear   y [.., mine] = x w[:, mine]          dx is a sum over the ranks
    row_linear      y = the sum of x[.., mine] w[mine, :]
    heads           each rank its query heads, and the kv heads that these look at
    embedding       each rank the rows of the table that it has; the sum of all

x is on all ranks, or each has its own tokens (sequence parallel): then sums are scattered along the
tokens, and what enters a column_linear is gathered (arXiv:1909.08053, arXiv:2205.05198).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tiledask.plan.collectives.shards import deal_heads
from tiledask.plan.program.making.tape import Tape, Value, Written, layer

__all__ = ["TENSOR", "LayerWeights", "TensorLayers"]

TENSOR = 1
"""The axis of the mesh of the tensor-parallel ranks."""


class LayerWeights:
    """Where layers have their weights from, and bring their gradients to: those of one unit."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values, self.gradients = values, dict[str, Value]()
        self.shapes: Mapping[str, Mapping[str, tuple[int, ...]]]
        self.shapes = {"": {name: value.shape for name, value in values.items()}}
        """By unit and name."""

    def weight(self, unit: str, name: str) -> Value:
        """An array of a unit as it is now: forward or backward."""
        return self.values[name]

    def bring(self, unit: str, found: Mapping[str, Value]) -> None:
        """Gradients are there, by name."""
        self.gradients |= found


@dataclass(frozen=True)
class TensorLayers:
    """The layers of some rows on one rank of a tensor-parallel group."""

    tape: Tape
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
    axis: int = TENSOR
    """Of the mesh, along which the ranks of the group differ."""

    # -- between the ranks ----------------------------------------------------------------------

    def gather_tokens(self, x: Value, label: str) -> Value:
        """All tokens of ``x``."""
        if self.tokens is None or self.ranks == 1:
            return x
        dim, extents = self.tokens
        return self.along("all_gather", x, label, dim, extents, sum(extents))

    def reduce_output(self, y: Value, label: str) -> Value:
        """The sum over the ranks of ``y``, or this rank's tokens of it."""
        if self.tokens is None or self.ranks == 1:
            return self.summed(y, label)
        dim, parts = self.tokens
        return self.along("reduce_scatter", y, label, dim, parts, parts[self.rank], extents=parts)

    def along(
        self, kind: str, x: Value, label: str, dim: int, parts: Sequence[int], extent: int,
        **more: Any,
    ) -> Value:  # fmt: skip
        """What a collective of ``parts`` of ``dim`` makes of ``x``: ``extent`` indices there."""
        row = prod(x.resized(dim, 1))
        more |= {"counts": tuple(row * n for n in parts), "dim": dim, "stream": "tp"}
        return self.tape.together(kind, x, label, (self.axis,), x.resized(dim, extent), **more)

    def summed(self, x: Value, label: str, ranks: int = 0, **more: Any) -> Value:
        """The sum over the ranks, or ``ranks`` of them."""
        return self.tape.all_reduce(x, label, (self.axis,), ranks or self.ranks, "tp", **more)

    # -- linear layers --------------------------------------------------------------------------

    @layer
    def column_linear(
        self,
        x: Value,
        unit: str,
        names: Sequence[str],
        labels: Sequence[str],
        turned: bool = False,
        by_heads: bool = False,
    ) -> Written:
        """x w + b by columns, of one w or several; ``turned``: w is the transpose of what is
        kept; ``by_heads``: some columns are on several ranks."""
        tape = self.tape
        wholes = [self.gather_tokens(x, f"{label}/forward") for label in labels]
        each = zip(wholes, names, strict=True)
        made = [self._linear(whole, unit, name, turned) for whole, name in each]
        ys = [part for part, _ in made]
        y, widths = ys[0], tuple(part.shape[-1] for part in ys)
        if len(ys) > 1:
            y = tape.make("join", ys, "y", y.resized(-1, sum(widths)))
        dy = yield y
        parts, found, of_x = [dy], dict[str, Value](), []
        if len(ys) > 1:
            parts = [tape.value("dy", part.shape) for part in ys]
            tape.do("cut", (dy,), parts, widths=widths)
        for d, whole, (_, pair), label in zip(parts, wholes, made, labels, strict=True):
            again = self.gather_tokens(x, f"{label}/backward") if self.regather else whole
            dx, more = self._gradients(d, again, unit, pair, f"{label}/backward", turned)
            of_x.append((x, dx))
            found |= more
        with tape.gradients_of_weights():
            self.weights.bring(unit, self._shared(found, unit) if by_heads else found)
        return of_x

    @layer
    def row_linear(self, x: Value, unit: str, w: str, label: str) -> Written:
        """The sum of all ranks' x w by rows, + b."""
        part, pair = self._linear(x, unit, w, biased=False)
        y = self.reduce_output(part, f"{label}/forward")
        if b := pair[1:]:
            y = self.tape.make("add_bias", (y, self.weights.weight(unit, *b)), "y", y.shape)
        dy = yield y
        whole = self.gather_tokens(dy, f"{label}/backward")
        dx, found = self._gradients(whole, x, unit, pair)
        with self.tape.gradients_of_weights():
            self.weights.bring(unit, found)
        return [(x, dx)]

    def _linear(
        self, x: Value, unit: str, name: str, turned: bool = False, biased: bool = True
    ) -> tuple[Value, list[str]]:
        """x w, and its bias if there is one and it is ``biased``; and the names of both."""
        room, dot, last = name.rpartition(".")
        bias = f"{room}{dot}b{last[1:]}"
        pair = [name, bias] if bias in self.weights.shapes[unit] else [name]
        w, *b = (self.weights.weight(unit, each) for each in pair[: 1 + biased])
        y, rows = x.resized(-1, w.shape[0 if turned else 1]), prod(x.shape[:-1])
        args: dict[str, Any] = {"turned": turned or None, "product": (rows, x.shape[-1], y[-1])}
        return self.tape.make("linear", (x, w, *b), "y", y, **args), pair

    def _gradients(
        self, dy: Value, x: Value, unit: str, pair: Sequence[str], label: str = "",
        turned: bool = False,
    ) -> tuple[Value, dict[str, Value]]:  # fmt: skip
        """dx, summed over the ranks if it has a ``label``; those of w and its bias, by name."""
        tape, rows, (k, n) = self.tape, prod(dy.shape[:-1]), (x.shape[-1], dy.shape[-1])
        args: dict[str, Any] = {"turned": turned or None, "product": (rows, n, k)}
        reads = dy, self.weights.weight(unit, pair[0])
        dx = tape.make("linear_grad_input", reads, "dx", x.shape, **args)
        if label:
            dx = self.reduce_output(dx, label)
        with tape.gradients_of_weights():
            found = {
                name: tape.value(hint, self.weights.weight(unit, name).shape)
                for name, hint in zip(pair, ("dw", "db"), strict=False)
            }
            args["product"] = k, rows, n
            tape.do("linear_grad_weight", (dy, x), tuple(found.values()), **args)
        return dx, found

    # -- norms, sums, activations ---------------------------------------------------------------

    @layer
    def norm(
        self, x: Value, unit: str, name: str, label: str, gated: bool, eps: float | None = None
    ) -> Written:
        """RMSNorm if ``gated``, else LayerNorm; over each token's width."""
        tape, kernel, weight = self.tape, "rms_norm" if gated else "layer_norm", self.weights.weight
        names = [f"{name}.{kind}" for kind in ("w" if gated else "wb")]
        names = [n for n in names if n in self.weights.shapes[unit]]
        y, each = tape.value("y", x.shape), x.resized(-1, 1)
        kept = [tape.value("inverse", each, tape.accum_itemsize)]
        kept += [] if gated else [tape.value("mean", each, tape.accum_itemsize)]
        tape.do(kernel, (x, *(weight(unit, n) for n in names)), (y, *kept), eps=eps)
        dy = yield y
        dx = tape.value("dx", x.shape)
        found = {n: tape.value("dw", x.shape[-1:]) for n in names}
        weights = [weight(unit, n) for n in names]  # gathered again by now
        tape.do(f"{kernel}_grad", (dy, x, *kept, *weights), (dx, *found.values()))
        with tape.gradients_of_weights(later=True):
            if self.tokens:  # each rank has seen its own tokens only
                among = f"{label}/backward", (self.axis,), self.ranks, "tp"
                found = tape.sum_small(found, None, *among)
            self.weights.bring(unit, found)
        return [(x, dx)]

    @layer
    def add(self, x: Value, y: Value) -> Written:
        """x + y; the gradient of the sum is that of both."""
        d = yield self.tape.make("add", (x, y), "sum", x.shape)
        return [(x, d), (y, d)]

    @layer
    def through(self, kernel: str, x: Value, width: int) -> Written:
        """``kernel`` of ``x``; its gradient needs x too, or of relu what came out."""
        y = self.tape.make(kernel, (x,), "y", x.resized(-1, width))
        dy = yield y
        reads = dy, y if kernel == "relu" else x
        return [(x, self.tape.make(f"{kernel}_grad", reads, "dx", x.shape))]

    # -- attention ------------------------------------------------------------------------------

    @layer
    def attention(self, qkv: Value, angles: Value | None) -> Written:
        """Each query head at its kv head, among q | k | v; q and k turned by ``angles``."""
        tape, (query, kv, width) = self.tape, self.heads
        of_query, of_kv = deal_heads(query, kv, self.ranks)
        n, m = of_query.counts[self.rank], of_kv.counts[self.rank]
        looks: tuple[int, ...] = ()
        if n:
            ((start, stop),), ((first, _),) = of_query.parts[self.rank], of_kv.parts[self.rank]
            looks = tuple(i // (query // kv) - first for i in range(start, stop))
        here: dict[str, Any] = {"heads": (n, m, width)}
        turned = qkv
        if angles:
            turned = tape.make("rotate", (qkv, angles), "qkv", qkv.shape, **here)
        rows, tokens, _ = qkv.shape
        args = here | {"kv_of": looks, "product": (rows * n, tokens, width)}
        c = tape.value("y", (rows, tokens, n * width))
        p = tape.value("p", (rows, n, tokens, tokens))
        tape.do("attention", (turned,), (c, p), **args)
        dc = yield c
        args["work"] = p.size * p.itemsize  # p's gradient, over which that of the scores goes
        d = tape.make("attention_grad", (dc, turned, p), "dx", qkv.shape, **args)
        if angles:
            d = tape.make("rotate_grad", (d, angles), "dx", qkv.shape, **here)
        return [(qkv, d)]

    def _shared(self, found: dict[str, Value], unit: str) -> dict[str, Value]:
        """``found`` of q | k | v, or of each apart: of kv heads on several ranks, the sum."""
        query, kv, width = self.heads
        heads, of_kv = deal_heads(query, kv, self.ranks)
        q, columns_of = heads.counts[self.rank] * width, of_kv.scaled(width)
        k = columns_of.counts[self.rank]
        of = {name: name.rpartition(".")[2] for name in found}  # wq, bq, ...
        one = len({short[1:] for short in of.values()}) == 1
        names = sorted((n for n in of if one or of[n][-1] in "kv"), key=lambda n: of[n][0] == "b")
        for ranks, (start, stop) in columns_of.shared():
            if self.rank not in ranks:
                continue
            here, mine = columns_of.indices(self.rank).tolist(), [found[n] for n in names]
            at, wide = here.index(start), stop - start
            columns = tuple((o + at, o + at + wide) for o in ((q, q + k) if one else (0,)))
            each = len(columns) * wide
            size = sum(each * prod(d.shape[:-1]) for d in mine)
            flat = self.tape.make("columns", mine, "shared", (size,), columns=columns)
            label = f"{unit}/attention/shared kv/backward"
            among = ranks if len(ranks) < self.ranks else ()
            total = self.summed(flat, label, len(ranks), among=among)
            made = [self.tape.value("dw", d.shape) for d in mine]
            self.tape.do("put_columns", (total, *mine), made, columns=columns)
            found = found | dict(zip(names, made, strict=True))
        return found

    # -- a decoder's block, its beginning and its end -------------------------------------------

    def block(
        self, x: Value, angles: Value | None, unit: str, gated: bool, eps: float | None = None
    ) -> Value:
        """Norm, attention, +, norm, feed-forward, +."""
        a = self.norm(x, unit, "norm_1", f"{unit}/norm_1", gated, eps)
        x = self.add(x, self.self_attention(a, angles, unit))
        m = self.norm(x, unit, "norm_2", f"{unit}/norm_2", gated, eps)
        return self.add(x, self.feed_forward(m, unit, "swiglu" if gated else "gelu"))

    def self_attention(self, x: Value, angles: Value | None, unit: str) -> Value:
        """Projections to heads, attention, and the projection back."""
        qkv = self._into(x, unit, "attention", "wqkv", "wq", "wk", "wv")
        c = self.attention(qkv, angles)
        return self.row_linear(c, unit, "attention.wo", f"{unit}/attention/wo")

    def feed_forward(self, x: Value, unit: str, kernel: str) -> Value:
        """By columns, an activation or SwiGLU's gate, and by rows."""
        into: tuple[str, ...] = ("w_1", "w_1")
        last = "w_2"
        if kernel == "swiglu":
            into, last = ("w_gate_up", "w_gate", "w_up"), "w_down"
        z = self._into(x, unit, "mlp", *into)
        g = self.through(kernel, z, self.weights.weight(unit, f"mlp.{last}").shape[0])
        return self.row_linear(g, unit, f"mlp.{last}", f"{unit}/mlp/{last}")

    def _into(self, x: Value, unit: str, room: str, one: str, *several: str) -> Value:
        """A `column_linear` of the layer called ``room``, by one matrix if it has that."""
        mine = (one,) if f"{room}.{one}" in self.weights.shapes[unit] else several
        labels, names = (
            [f"{start}{name}" for name in mine] for start in (f"{unit}/{room}/", f"{room}.")
        )
        return self.column_linear(x, unit, names, labels, by_heads=room == "attention")

    @layer
    def embedding(self, ids: Value, counts: tuple[int, ...]) -> Written:
        """The rows of the table for tokens ``ids``; ``counts``: rows that each rank has."""
        tape, part = self.tape, ("part", self.axis, counts)
        table = self.weights.weight("embedding", "table")
        shape = *ids.shape, table.shape[-1]
        made = tape.make("embedding", (ids, table), "x", shape, rows=part)
        dy = yield self.reduce_output(made, "embedding/forward")
        with tape.gradients_of_weights():
            whole = self.gather_tokens(dy, "embedding/backward")
            d = tape.make("embedding_grad", (whole, ids), "dw", table.shape, rows=part)
            self.weights.bring("embedding", {"table": d})
        return []

    @layer
    def positions(self, x: Value) -> Written:
        """x + the row of the table for each token's place."""
        tape, table = self.tape, self.weights.weight("positions", "table")
        part = ("part", self.axis, self.tokens[1]) if self.tokens else None
        dy = yield tape.make("add_rows", (x, table), "x", x.shape, tokens=part)
        with tape.gradients_of_weights():
            args: dict[str, Any] = {"tokens": part, "rows": table.shape[0]}
            d = tape.make("add_rows_grad", (dy,), "dw", table.shape, **args)
            if self.tokens:  # every rank has seen its own tokens only
                d = self.summed(d, "positions/backward")
            self.weights.bring("positions", {"table": d})
        return [(x, dy)]

    @layer
    def loss(self, logits: Value, targets: Value, counts: tuple[int, ...], count: float) -> Written:
        """The sum of the tokens' cross-entropies over ``count``. ``counts``: classes by rank."""
        tape, tokens, wide = self.tape, targets.shape, self.tape.accum_itemsize
        part = ("part", self.axis, counts)
        maximum = tape.make("largest_logit", (logits,), "maximum", tokens, wide)
        maximum = self.summed(maximum, "cross_entropy/maximum/forward", op="max")
        reads = [logits, targets, maximum]
        sums = tape.make("loss_sums", reads, "sums", (2, *tokens), wide, classes=part)
        sums = self.summed(sums, "cross_entropy/sums/forward")
        loss = tape.make("loss", (sums, targets), "loss", (), wide, count=count)
        dloss = yield loss
        reads += [sums] + [dloss] * (dloss is not loss)
        args = {"classes": part, "count": count}
        return [(logits, tape.make("logits_grad", reads, "dx", logits.shape, **args))]
