"""Seconds of one layer on one device: its products, its attention core, its passes over memory.

x -norm- QKV -[scores softmax context]- output -+- norm - up act down -+-      forward
         gemm      attention core       gemm   pass     gemm   gemm   pass

A product [t, k] x [k, n] costs twice more backward: its inputs' gradient [t, n] x [n, k] and its
weight's [k, t] x [t, n]. Numbers of the layout may be NumPy arrays; what comes out is an array of
[forward and backward, layouts].
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np

from tiledask.plan.arrays import Array, Values, stacked
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Numbers
from tiledask.plan.inputs.model import Model, Weight
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.timing.calibration import Calibration
from tiledask.plan.timing.roofline import Rates, ceil_div, gemm_bytes, gemm_seconds, memory_seconds

__all__ = ["LayerTime", "Product", "products"]


class Product(NamedTuple):
    """Matrices that multiply the same vectors, as one product [tokens, k] x [k, n]."""

    name: str
    weights: tuple[Weight, ...]

    def shape(self, tp: Values) -> tuple[Values, Values]:
        """(k, n) on one of ``tp`` devices: rows cut k, columns cut n, whole ones neither."""
        first = self.weights[0]
        if first.row:
            each = first.inputs // first.units
            return each * _units(first, tp), first.size // each
        return first.inputs, sum(w.size * _units(w, tp) // w.inputs for w in self.weights)


def _units(weight: Weight, tp: Values) -> Values:
    return ceil_div(weight.units, tp) if weight.split else weight.units


def products(weights: tuple[Weight, ...]) -> tuple[Product, ...]:
    """The products of a layer, in its order; neighbours with equal inputs are one product.

    >>> gpt = Model(hidden=64, layers=1, heads=4, ffn=256, vocab=100)
    >>> [(p.name, p.shape(tp=2)) for p in products(gpt.layer)]  # doctest: +NORMALIZE_WHITESPACE
    [('query+key+value', (64, 96)), ('attention output', (32, 64)),
     ('mlp up', (64, 128)), ('mlp down', (128, 64))]
    """

    def alike(w: Weight) -> tuple[str, int, int, int]:
        alone = w.name if w.row or not w.split else ""
        return alone, w.inputs, w.copies, w.active

    groups = [tuple(g) for _, g in groupby((w for w in weights if w.inputs), alike)]
    return tuple(Product("+".join(w.name for w in group), group) for group in groups)


@dataclass(frozen=True)
class LayerTime:
    """What the time of a layer is made of, for one layout or for arrays of them."""

    model: Model
    cluster: ClusterSpec
    n: Numbers
    recipe: Recipe
    sequence: int
    calibration: Calibration

    @cached_property
    def rates(self) -> Rates:
        """Of the attention core, the head and the passes over memory."""
        return self.calibration.rates(self.cluster.device, self.recipe)

    @cached_property
    def width(self) -> int:
        """Bytes of an activation."""
        return self.recipe.compute_bytes

    @cached_property
    def tokens(self) -> Values:
        """Tokens of a micro-batch on one device."""
        return self.n.microbatch * ceil_div(self.sequence, self.n.cp)

    @cached_property
    def own_tokens(self) -> Values:
        """Of them, those whose residual stream a device works on outside the products."""
        each = ceil_div(ceil_div(self.sequence, self.n.cp), self.n.tp)
        return np.where(self.n.sequence_parallel, self.n.microbatch * each, self.tokens)

    @property
    def expert_tokens(self) -> Values:
        """Tokens that come to the experts of the fullest device, for each of its own tokens and
        each of a token's experts."""
        share: Values = self.model.imbalance * self.n.expert_slices / self.n.tp
        return share

    def weight_products(self, weights: tuple[Weight, ...]) -> Array:
        """Seconds of all products with weights. Those of experts are small: what reads and writes
        their weights comes on top. Operands of 8 bits are cast in passes of 4 bytes over each
        input, forward, and each output's gradient, backward."""
        n, recipe, width = self.n, self.recipe, self.recipe.operand_bytes
        rates = self.calibration.rates(self.cluster.device, recipe, width)
        casts = self.calibration.casts if recipe.product_bytes else 0.0
        total: Array = np.zeros((2, 1))
        for product in products(weights):
            first = product.weights[0]
            batch: Values = 1
            rows, slices = self.tokens, n.tp
            if first.copies > 1:
                batch, slices = ceil_div(first.copies, n.ep), n.expert_slices
                rows = self.expert_tokens * self.tokens * first.active * n.ep / first.copies
            k, columns = product.shape(slices)
            forward = gemm_seconds(rows, k, columns, rates, width, batch)
            inputs = gemm_seconds(rows, columns, k, rates, width, batch)
            weight = self.weight_gradient(rows, k, columns, rates, width, batch)
            if first.copies > 1:
                held = 1.0 * batch * k * columns
                forward = forward + memory_seconds(width * held, rates)
                inputs = inputs + memory_seconds((width + 2 * recipe.gradient_bytes) * held, rates)
            cast = 4.0 * casts * batch * rows
            forward = forward + memory_seconds(cast * k, rates)
            backward = inputs + weight + memory_seconds(cast * columns, rates)
            total = total + stacked(forward, backward)
        return total

    def weight_gradient(
        self, rows: Values, k: Values, n: Values, rates: Rates, width: int, batch: Values = 1
    ) -> Values:
        """Seconds of [k, rows] x [rows, n], added to the gradients of earlier micro-batches: by a
        kernel of its own, which reads two and writes one, where they are as wide as the product's
        numbers; else, or where the framework does so, by the product itself (Megatron-LM's fused
        accumulation of fp32 gradients). Frozen weights have none."""
        gradient = self.recipe.gradient_bytes
        if not gradient:
            return 0.0
        product = gemm_seconds(k, rows, n, rates, width, batch)
        weights = 1.0 * batch * k * n
        if gradient <= width and not self.calibration.adds_gradients:
            return product + memory_seconds((width + 2 * gradient) * weights, rates)
        moved = gemm_bytes(k, rows, n, width, batch) + (2 * gradient - width) * weights
        seconds: Values = np.maximum(product, memory_seconds(moved, rates))
        return seconds

    def attention_core(self) -> Array:
        """Seconds of scores, softmax and context: a piece of the sequence against all of it.

        Without flash attention: two batched products over all keys, masked or not, and the scores
        read and written by softmax (2 passes forward, 3 backward) and by dropout (2 passes and a
        mask of one byte, each way). With it: one kernel that skips what the mask hides, and
        that computes the scores again backward: 5 products for the 2 of the forward pass (Dao 2023,
        arXiv:2307.08691, section 3.1).
        """
        n, model, rates, width = self.n, self.model, self.rates, self.width
        queries, keys = ceil_div(self.sequence, n.cp), self.sequence
        batch = n.microbatch * ceil_div(model.heads, n.tp)
        scores = 1.0 * batch * queries * keys
        (score, grad_query, grad_key), (grad_score, context, grad_value) = (
            [  # [q, d] x [d, s], [q, s] x [s, d] and [s, q] x [q, d]
                gemm_seconds(a, b, c, rates, width, batch)
                for a, b, c in ((queries, d, keys), (queries, keys, d), (keys, queries, d))
            ]
            for d in (model.qk_dim, model.v_dim)
        )
        both = stacked(score + context, grad_score + grad_query + grad_key + grad_value)
        masked = 2 * width + 1 if model.dropout else 0
        moved = stacked((2 * width + masked) * scores, (3 * width + masked) * scores)
        eager = both + memory_seconds(moved, rates)
        flop = 2.0 * scores * (model.qk_dim + model.v_dim) * model.visible(keys)
        filled = 1 + rates.flash_fill / (batch * queries / 128)
        fused = stacked(filled * flop / rates.flash, 2.5 * flop / rates.flash_backward)
        return np.where(n.flash_attention, fused, eager)

    def passes(self, weights: tuple[Weight, ...]) -> Array:
        """Seconds of the element-wise kernels outside the attention core, limited by memory.

        Passes, each of ``width`` bytes a number, forward and backward:

        norm 2, 3 | residual sum 3, 3 | its dropout a mask, 2 and a mask | a bias 0, 1
        activation 2, 3; gated 3, 5 | context turned from heads to rows 2, 2
        gradients of q, k, v joined 0, 2 | mixture: tokens sorted to their experts and back 4, 4
        """
        model, tokens, own, width = self.model, self.tokens, self.own_tokens, self.width
        tp, h, norms = self.n.tp, model.hidden, model.layer_norms * (model.norm != "none")
        mask, biases = model.dropout / width, model.out_bias + model.mlp_bias
        there: Values = h * (norms * 2 + 2 * (3 + mask)) * own
        back: Values = h * (norms * 3 + 2 * (3 + (2 + 1 / width) * model.dropout) + biases) * own
        a, g = ceil_div(model.heads, tp), ceil_div(model.kv_heads, tp)
        context, qkv = a * model.v_dim, a * model.qk_dim + g * (model.qk_dim + model.v_dim)
        inner: Values = sum(
            ceil_div(w.inputs, tp) * w.active * (model.imbalance if w.copies > 1 else 1)
            for w in weights
            if w.row and "mlp" in w.name
        )
        gated = model.mlp == "swiglu"
        turned: Values = 2 * context * tokens
        joined: Values = (2 + model.qkv_bias) * qkv * tokens
        inner = inner * tokens
        there = there + (3 if gated else 2) * inner + turned
        back = back + ((5 if gated else 3) + model.mlp_bias) * inner + turned + joined
        if any(w.copies > 1 for w in weights):
            sorted_ = 4 * model.imbalance * model.top_k * h * own
            there, back = there + sorted_, back + sorted_
        return memory_seconds(1.0 * width * stacked(there, back), self.rates)

    def adapter_passes(self, weights: tuple[Weight, ...]) -> Array:
        """Seconds of low-rank adapters, limited by memory: beside a product [t, k] x [k, n] its
        input is read, and the adapter's output written and added, k + 4 n numbers a token forward,
        and 4 k + 2 n backward."""
        adapters = self.recipe.adapters
        there: Values = 0.0
        back: Values = 0.0
        for weight in (w for w in weights if adapters and w.inputs and w.name in adapters.matrices):
            k, n = Product(weight.name, (weight,)).shape(self.n.tp)
            there = there + weight.active * (k + 4 * n)
            back = back + weight.active * (4 * k + 2 * n)
        return memory_seconds(1.0 * self.width * self.tokens * stacked(there, back), self.rates)

    def logits(self) -> Array:
        """Seconds of the logits and of the cross-entropy: the product, and passes over
        single-precision logits: cast, maximum, exponential, sum and quotient forward (24 + width
        bytes a logit), gradient and cast backward (12 + width); a fused loss does a part."""
        tokens, rates, width = self.tokens, self.rates, self.width
        passed = self.calibration.loss_passes
        columns = ceil_div(self.model.vocab, self.n.tp)
        moved = stacked(passed * (24 + width), passed * (12 + width)) * (1.0 * tokens * columns)
        total = memory_seconds(moved, rates)
        h = self.model.hidden
        there = gemm_seconds(tokens, h, columns, rates, width)
        back = gemm_seconds(tokens, columns, h, rates, width)
        weight = self.weight_gradient(tokens, h, columns, rates, width)
        return total + stacked(there, back + weight)
