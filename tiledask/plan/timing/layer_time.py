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
from operator import itemgetter

import numpy as np

from tiledask.plan.arrays import Array, Values, stacked
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.kinds import Core, LayerKind
from tiledask.plan.inputs.layout import Numbers
from tiledask.plan.inputs.model import Model, Weight
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.timing.calibration import Calibration
from tiledask.plan.timing.roofline import Rates, ceil_div, gemm_bytes, gemm_seconds

__all__ = ["LayerTime", "products", "shape_of"]


def products(weights: tuple[Weight, ...]) -> list[tuple[Weight, ...]]:
    """The products of a layer, in its order; neighbours with equal inputs are one product.

    >>> gpt = Model(hidden=64, layers=1, heads=4, ffn=256, vocab=100)
    >>> [("+".join(w.name for w in each), shape_of(each, tp=2)) for each in products(gpt.layer)]
    ... # doctest: +NORMALIZE_WHITESPACE
    [('query+key+value', (64, 96)), ('attention output', (32, 64)),
     ('mlp up', (64, 128)), ('mlp down', (128, 64))]
    """

    matrices = [w for w in weights if w.inputs]
    alike = [
        (w.name if w.row or not w.split else "", w.inputs, w.copies, w.active) for w in matrices
    ]
    pairs = zip(alike, matrices, strict=True)
    return [tuple(w for _, w in group) for _, group in groupby(pairs, key=itemgetter(0))]


def shape_of(product: tuple[Weight, ...], tp: Values) -> tuple[Values, Values]:
    """(k, n) on one of ``tp`` devices, of matrices that multiply the same vectors: rows cut k,
    columns cut n, whole ones neither."""
    first = product[0]
    units = [ceil_div(w.units, tp) if w.split else w.units for w in product]
    if first.row:
        each = first.inputs // first.units
        return each * units[0], first.size // each
    return first.inputs, sum(w.size * n // w.inputs for w, n in zip(product, units, strict=True))


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
    def tokens(self) -> Values:
        """Tokens of a micro-batch on one device."""
        return self.n.microbatch * ceil_div(self.sequence, self.n.cp)

    @cached_property
    def own_tokens(self) -> Values:
        """Of them, those whose residual stream a device works on outside the products."""
        each = ceil_div(ceil_div(self.sequence, self.n.cp), self.n.tp)
        return np.where(self.n.sequence_parallel, self.n.microbatch * each, self.tokens)

    def weight_products(self, weights: tuple[Weight, ...]) -> Array:
        """Seconds of all products with weights. Experts' are small: moving their weights comes on
        top. Operands of 8 bits are cast in passes over inputs, forward, and gradients, backward."""
        n, recipe, width = self.n, self.recipe, self.recipe.operand_bytes
        rates = self.calibration.rates(self.cluster.device, recipe, width)
        casts = self.calibration.casts if recipe.product_bytes else 0.0
        total: Array = np.zeros((2, 1))
        for product in products(weights):
            copies, rows, slices = product[0].copies, self.tokens, n.tp
            batch: Values = 1
            if copies > 1:
                batch, slices = ceil_div(copies, n.ep), n.expert_slices
                each = product[0].active * n.ep / copies  # tokens to the fullest device's experts
                rows = self.model.imbalance * n.expert_slices / n.tp * self.tokens * each
            k, columns = shape_of(product, slices)
            moved = 4.0 * casts * batch * rows * stacked(k, columns)
            if copies > 1:
                held = 1.0 * batch * k * columns
                moved = moved + stacked(width, width + 2 * recipe.gradient_bytes) * held
            total = total + self.product(rows, k, columns, rates, width, batch)
            total = total + moved / rates.memory
        return total

    def product(
        self, rows: Values, k: Values, n: Values, rates: Rates, width: int, batch: Values = 1
    ) -> Array:
        """Seconds of [rows, k] x [k, n], there and back.

        The weight's gradient, if not frozen, is added to those of earlier micro-batches: by a
        kernel that reads two and writes one, where they are as wide as the product's numbers; else,
        or where the framework does so, by the product itself (as Megatron-LM's fp32 gradients)."""
        there = gemm_seconds(rows, k, n, rates, width, batch)
        back = gemm_seconds(rows, n, k, rates, width, batch)
        if gradient := self.recipe.gradient_bytes:
            of_weight, weights = gemm_seconds(k, rows, n, rates, width, batch), 1.0 * batch * k * n
            if gradient <= width and not self.calibration.adds_gradients:
                of_weight = of_weight + (width + 2 * gradient) * weights / rates.memory
            else:
                moved = gemm_bytes(k, rows, n, width, batch) + (2 * gradient - width) * weights
                of_weight = np.maximum(of_weight, moved / rates.memory)
            back = back + of_weight
        return stacked(there, back)

    def core(self, core: Core) -> Array:
        """Seconds of scores, softmax and context: a piece of the sequence against all of it.

        Without flash attention: two batched products over all keys, and passes over the scores,
        softmax's (2 forward, 3 backward) and dropout's (2 and a mask of one byte, each way). With
        it: one kernel that skips what the mask hides, and computes the scores again backward: 5
        products for the 2 of the forward pass (Dao 2023, arXiv:2307.08691, section 3.1). A scan's
        products of chunks are taken to be as fast, and their backward to cost as much more."""
        n, rates, width = self.n, self.rates, self.recipe.compute_bytes
        queries, keys = ceil_div(self.sequence, n.cp), self.sequence
        batch = n.microbatch * ceil_div(core.heads, n.tp)
        if core.visible is None:
            flop = 1.0 * batch * queries * core.flop
            return stacked(flop / rates.flash, 2.5 * flop / rates.flash_backward)
        scores = 1.0 * batch * queries * keys
        (score, grad_query, grad_key), (grad_score, context, grad_value) = (
            [  # [q, d] x [d, s], [q, s] x [s, d] and [s, q] x [q, d]
                gemm_seconds(a, b, c, rates, width, batch) if d else 0.0
                for a, b, c in ((queries, d, keys), (queries, keys, d), (keys, queries, d))
            ]
            for d in (core.qk, core.v)
        )
        both = stacked(score + context, grad_score + grad_query + grad_key + grad_value)
        masked = 2 * width + 1 if self.model.dropout else 0
        eager = both + stacked(2 * width + masked, 3 * width + masked) * scores / rates.memory
        flop = 2.0 * scores * (core.qk + core.v) * core.visible(keys)
        filled = 1 + rates.flash_fill / (batch * queries / 128)
        fused = stacked(filled * flop / rates.flash, 2.5 * flop / rates.flash_backward)
        return np.where(n.flash_attention, fused, eager)

    def passes(self, kind: LayerKind) -> Array:
        """Seconds of the element-wise kernels outside the attention core, limited by memory.

        Passes, each of ``width`` bytes a number, forward and backward:

        norm 2, 3 | residual sum 3, 3 | its dropout a mask, 2 and a mask | a bias 0, 1
        activation 2, 3; gated 3, 5 | context turned from heads to rows 2, 2
        gradients of q, k, v joined 0, 2 | mixture: tokens sorted to their experts and back 4, 4
        short convolution 2, 3 | a mixer's gate 3, 5
        """
        moved = np.zeros((2, 1))
        for units, size, forward, backward, split, itemsize in kind.passes:
            many = ceil_div(units, self.n.tp) * self.tokens if split else units * self.own_tokens
            each = size * (itemsize or self.recipe.compute_bytes)
            moved = moved + stacked(each * forward, each * backward) * many
        return moved / self.rates.memory
