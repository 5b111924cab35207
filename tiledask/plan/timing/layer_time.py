"""Seconds of a layer, the embedding and the head on one device: products, attention core, passes
over memory, and what of the collectives beside them is waited for.

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
from typing import Any

import numpy as np

from tiledask.plan.arrays import Array, Values, stacked
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.kinds import Core, LayerKind
from tiledask.plan.inputs.layout import SELECTIVE_OP, Numbers, expert_slices
from tiledask.plan.inputs.model import Model, Weight
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.inputs.run import tokens_of
from tiledask.plan.pipelines.schedules import BOTH_WAYS
from tiledask.plan.timing.calibration import Calibration
from tiledask.plan.timing.collective_time import all_gather, all_reduce, exchange, p2p
from tiledask.plan.timing.roofline import Rates, gemm_bytes, gemm_seconds

__all__ = ["PIECE", "LayerTime", "products", "shape_of"]

SENDING = 20 / 132
"""Share of a device's multiprocessors that send tokens to experts beside other work (DeepSeek-V3,
arXiv:2412.19437, section 3.2.2)."""
PIECE = ("compute", "recompute", "tp", "cp", "ep", "pp")
"""What the seconds of a micro-batch in a piece go to: [these, forward and backward, layouts]."""
NOTHING = np.zeros((2, 1))


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
    units = [-(-w.units // tp) if w.split else w.units for w in product]
    if first.row:
        each = first.inputs // first.units
        return each * units[0], first.size // each
    return first.inputs, sum(w.size * n // w.inputs for w, n in zip(product, units, strict=True))


def _piece(**seconds: Array) -> Array:
    return np.stack(np.broadcast_arrays(*(seconds.get(name, NOTHING) for name in PIECE)))


@dataclass(frozen=True)
class LayerTime:
    """What the time of a micro-batch is made of, for one layout or for arrays of them."""

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
    def tokens(self) -> Any:
        """Tokens of a micro-batch on one device."""
        return tokens_of(self.n, self.sequence)[0]

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
                batch, slices = -(-copies // n.ep), expert_slices(n)
                each = product[0].active * n.ep / copies  # tokens to the fullest device's experts
                rows = self.model.imbalance * expert_slices(n) / n.tp * self.tokens * each
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
        queries, keys = -(-self.sequence // n.cp), self.sequence
        batch = n.microbatch * -(-core.heads // n.tp)
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
        moved, own_tokens = np.zeros((2, 1)), tokens_of(self.n, self.sequence)[1]
        for units, size, forward, backward, split, itemsize in kind.passes:
            many = -(-units // self.n.tp) * self.tokens if split else units * own_tokens
            each = size * (itemsize or self.recipe.compute_bytes)
            moved = moved + stacked(each * forward, each * backward) * many
        return moved / self.rates.memory

    def layer(self, kind: LayerKind) -> Array:
        """One layer of a kind."""
        n, known, weights, mixture = self.n, self.calibration, kind.weights, kind.mixture
        width = self.recipe.compute_bytes
        core = sum(map(self.core, kind.cores), np.zeros((2, 1)))
        core = (1 + (1 / known.ring_part - 1) * (1 - 1 / np.asarray(n.cp))) * core
        matrices = self.weight_products(weights)
        host = known.launch_layer + known.layer_seconds + mixture * known.mixture_seconds
        # low-rank adapters beside a product [t, k] x [k, n] move k + 4 n numbers a token forward,
        # and 4 k + 2 n backward, limited by memory
        moved = NOTHING
        for weight in (w for w in weights if w.inputs and w.name in self.recipe.adapters):
            k, columns = shape_of((weight,), n.tp)
            moved = moved + weight.active * stacked(k + 4 * columns, 4 * k + 2 * columns)
        beside = width * self.tokens * moved / self.rates.memory
        beside = beside + stacked(host / 3, host * 2 / 3)
        compute = matrices + core + beside + known.eager_passes * self.passes(kind)
        recompute = np.asarray(n.recompute)
        full, scores = recompute == "full", recompute == "selective"
        again = np.select(
            [full, scores & ~np.asarray(n.flash_attention), recompute == SELECTIVE_OP],
            [compute[0], core[0], compute[0] - core[0] - matrices[0] / 2],
            0.0,
        )
        # keys and values pass round the ring while the core computes on those at hand
        rings = (each for each in kind.cores if each.visible)
        heads = sum(-(-each.groups // n.tp) * (each.qk + each.v) for each in rings)
        ring = (n.cp - 1) * p2p(1.0 * heads * width * self.tokens, n.cp, n.tp, self.cluster)
        waited = np.maximum(0.0, stacked(ring, 2 * ring) - core)
        collectives = {"tp": self._tensor(kind), "cp": waited}
        if mixture:  # two exchanges of tokens each way: what is exposed of them is waited for, or
            # what the work of the opposite pass cannot hide
            others = stacked(compute[0], compute[1] + again)
            own_tokens = tokens_of(n, self.sequence)[1]
            token = self.model.imbalance * own_tokens * self.model.hidden * width
            links = n.ep, expert_slices(n), self.cluster, known.exchange_share, known.most_nodes
            twice = 2 * exchange(token, self.model.top_k, *links)
            least = np.where(self.both_ways, SENDING, known.exposed["ep"]) * twice
            collectives["ep"] = np.maximum(least, twice - others[::-1])
        repeated = {name: stacked(c[0], c[1] + full * c[0]) for name, c in collectives.items()}
        if known.floor_seconds:
            short = np.maximum(0.0, known.floor_seconds - compute.sum(0) - again)
            compute = stacked(compute[0], compute[1] + short)
        return _piece(compute=compute, recompute=stacked(0.0, again), **repeated)

    @cached_property
    def kinds(self) -> list[Array]:
        """The seconds of a layer of each kind."""
        return [*map(self.layer, self.model.layer_kinds)]

    def mean_layer(self) -> Array:
        """The mean over all layers of the model."""
        pairs = zip(self.model.layer_kinds, self.kinds, strict=True)
        parts = (kind.many / self.model.layers * layer for kind, layer in pairs)
        return sum(parts, np.zeros((len(PIECE), 2, 1)))

    def _sum(self) -> Values:
        """Seconds of a sum of a micro-batch's residual stream over tp."""
        stream = 1.0 * self.tokens * self.model.hidden * self.recipe.compute_bytes
        return all_reduce(stream, self.n.tp, 1, self.cluster)

    def _tensor(self, kind: LayerKind) -> Array:
        """Sums of the residual stream over tp, attention's and the MLP's, each way; with sequence
        parallelism an all-gather and a reduce-scatter in place of each (Korthikanti et al. 2022,
        section 4.2.2). A mixture's are of the tokens that come to its experts, over its slices."""
        n, known, waits = self.n, self.calibration, self.calibration.exposed
        cut, tp, slices = np.asarray(n.sequence_parallel), np.asarray(n.tp), expert_slices(n)
        each, count, width = self._sum(), kind.sums * (tp > 1), self.recipe.compute_bytes
        sums = kind.sums * each
        if kind.mixture:
            came = self.model.imbalance * slices / n.tp * self.model.top_k * self.tokens
            own = all_reduce(1.0 * came * self.model.hidden * width, slices, 1, self.cluster)
            count = np.where(cut, kind.own_sums * (tp > 1) + (slices > 1), count)
            sums = np.where(cut, kind.own_sums * each + own, sums)
        launch = known.launch_collective + known.launch_rank * (np.maximum(tp, slices) - 1)
        launch = np.where(cut, 2, 1) * count * launch
        if known.gathers_operands:  # half of what moves is gathered, the other half sums
            sums = sums * np.where(cut, (1 + self.recipe.operand_bytes / width) / 2, 1)
        there, back = (
            sums * np.where(cut, waits[f"tp{way}"], waits[f"sum{way}"]) + launch
            for way in ("", "_backward")
        )
        return stacked(there, back)

    def embedding(self) -> Array:
        """Rows of the table summed over tp, and their gradients scattered back."""
        moved = 2.0 * self.recipe.compute_bytes * self.model.hidden * self.tokens
        compute = stacked(moved, 2 * moved) / self.rates.memory
        return _piece(compute=compute, tp=stacked(self._sum(), 0.0))

    def head(self) -> Array:
        """Logits and cross-entropy, and the sum of their gradient over tp: the product, and passes
        over fp32 logits: cast, maximum, exponential, sum and quotient forward (24 + width bytes a
        logit), gradient and cast backward (12 + width); a fused loss does a part."""
        columns, width = -(-self.model.vocab // self.n.tp), self.recipe.compute_bytes
        passed = self.calibration.loss_passes * stacked(24 + width, 12 + width)
        product = self.product(self.tokens, self.model.hidden, columns, self.rates, width)
        logits = product + passed * self.tokens * columns / self.rates.memory
        head = _piece(compute=logits, tp=stacked(0.0, self._sum()))
        if not (further := self.model.mtp_layers):
            return head
        joined = self.weight_products(tuple(w for w in self.model.head if "MTP" in w.name)[:1])
        layer = self.kinds[self.model.kind_of[-1]] + _piece(compute=joined)
        total: Array = head + further * (head + layer)
        return total

    def transfer(self) -> Array:
        """Waiting for neighbours. Each tensor-parallel rank sends a slice to its peer, and gathers
        the slices unless the sequence is cut (Narayanan et al. 2021, section 4.1)."""
        n, known, pp = self.n, self.calibration, np.asarray(self.n.pp)
        wide = self.model.hidden * self.model.streams * self.recipe.compute_bytes
        slice_ = 1.0 * -(-self.tokens // n.tp) * wide
        hop = p2p(slice_, n.pp, n.tp * n.cp * n.dp, self.cluster)
        gather = all_gather(slice_ * n.tp, n.tp, 1, self.cluster)
        gather = np.where(np.asarray(n.sequence_parallel) | (pp == 1), 0.0, gather)
        waited = (hop + gather) * known.exposed["pp"] + (pp > 1) * known.transfer_seconds
        return _piece(pp=stacked(waited, waited))

    @property
    def both_ways(self) -> Values:
        """Whether each stage is on two devices, which share its micro-batches."""
        return np.isin(self.n.schedule, BOTH_WAYS)
