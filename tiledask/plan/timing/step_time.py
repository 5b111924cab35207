"""The time of a training step as plain formulas: one layout, or ten thousand at once.

total = m x (compute + recompute + tp + cp + ep + pp)  + bubble + dp + optimizer
        the slowest stage, each micro-batch            fill and drain, end of the step
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache, reduce
from operator import add
from typing import Any

import numpy as np

from tiledask.plan.arrays import Values, combinations, numbered
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import SELECTIVE_OP, Numbers
from tiledask.plan.inputs.model import Model, Weight
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.inputs.run import check_timed
from tiledask.plan.pipelines.schedules import BOTH_WAYS
from tiledask.plan.timing.calibration import Calibration, calibration_of
from tiledask.plan.timing.collective_time import (
    all_gather,
    all_reduce,
    exchange,
    p2p,
    zero_passes,
)
from tiledask.plan.timing.interleaved import interleaved_seconds
from tiledask.plan.timing.layer_time import (
    Seconds,
    adapter_passes,
    attention_core,
    logits,
    passes,
    products,
    weight_products,
)
from tiledask.plan.timing.rates import rates_of
from tiledask.plan.timing.roofline import Rates, ceil_div, memory_seconds
from tiledask.plan.timing.step_values import Parts, Work

__all__ = ["Parts", "StepTime", "over_chunks", "stage_layers", "step_parts"]

SENDING = 20 / 132
"""Share of a device's multiprocessors that send tokens to experts beside other work (DeepSeek-V3,
arXiv:2412.19437, section 3.2.2)."""


BUCKET, BUCKET_OF_COPY = 4e7, 1e6
"""Numbers in a bucket of gradients: at least, and for each copy (Megatron-Core's default)."""


@dataclass(frozen=True)
class StepTime:
    """What the time of a step is made of, for one layout or for arrays of them."""

    model: Model
    cluster: ClusterSpec
    n: Numbers
    recipe: Recipe
    sequence: int
    calibration: Calibration

    def __post_init__(self) -> None:
        check_timed(self.recipe)

    @cached_property
    def rates(self) -> Rates:
        """Of the attention core, the head and the passes over memory."""
        return rates_of(self.cluster.device, self.recipe, self.calibration)

    @cached_property
    def product_rates(self) -> Rates:
        """Of the layers' products."""
        width = self.recipe.operand_bytes
        return rates_of(self.cluster.device, self.recipe, self.calibration, width)

    @property
    def width(self) -> int:
        return self.recipe.compute_bytes

    @property
    def tokens(self) -> Values:
        """Tokens of a micro-batch on one device."""
        return self.n.microbatch * ceil_div(self.sequence, self.n.cp)

    @property
    def whole(self) -> Values:
        """Of them, those whose residual stream a device works on outside the products."""
        each = ceil_div(ceil_div(self.sequence, self.n.cp), self.n.tp)
        return np.where(self.n.sequence_parallel, self.n.microbatch * each, self.tokens)

    # the pieces of the model -------------------------------------------------------------

    def layer(self, weights: tuple[Weight, ...]) -> Work:
        """One layer of ``weights``."""
        n, model, rates, width = self.n, self.model, self.rates, self.width
        core = attention_core(
            model,
            n.microbatch,
            ceil_div(self.sequence, n.cp),
            self.sequence,
            n.tp,
            n.flash_attention,
            rates,
            width,
        )
        recipe, known = self.recipe, self.calibration
        core = (1 + (1 / known.ring_part - 1) * (1 - 1 / np.asarray(n.cp))) * core
        matrices = weight_products(
            weights,
            self.tokens,
            n.tp,
            self.product_rates,
            recipe.operand_bytes,
            recipe.gradient_bytes,
            known.casts if recipe.product_bytes else 0.0,
            known.adds_gradients,
            (n.ep, n.expert_slices, self.come),
        )
        around = passes(model, weights, self.tokens, self.whole, n.tp, rates, width)
        mixture = any(weight.copies > 1 for weight in weights)
        host = known.launch_layer + known.layer_seconds + mixture * known.mixture_seconds
        beside = adapter_passes(recipe.adapters, weights, self.tokens, n.tp, rates, width)
        beside += Seconds(host / 3, host * 2 / 3)
        compute = matrices + core + beside + known.eager_passes * around
        recompute = np.asarray(n.recompute)
        full = recompute == "full"
        attention = np.where(n.flash_attention, 0.0, core.forward)
        every_second = compute.forward - core.forward - matrices.forward / 2
        again = np.select(
            [full, recompute == "selective", recompute == SELECTIVE_OP],
            [compute.forward, attention, every_second],
            0.0,
        )
        others = Seconds(compute.forward, compute.backward + again)
        experts = self._experts(others) if mixture else Seconds()
        collectives = (self._tensor(weights), self._context(core), experts)
        repeated = (Seconds(c.forward, c.backward + full * c.forward) for c in collectives)
        if known.floor_seconds:
            short = np.maximum(0.0, known.floor_seconds - compute.total - again)
            compute += Seconds(0.0, short)
        return Work(compute, Seconds(0.0, again), *repeated)

    @cached_property
    def kinds(self) -> list[tuple[str, int, Work]]:
        """(name, how many there are, the Work of one) of each kind of layer of the model."""
        given = [getattr(self.n, name) for name in LAYER]
        if any(isinstance(value, np.ndarray) for value in given):
            return self._each_kind()
        of = self.model, self.cluster, self.recipe, self.sequence, self.calibration
        return _kinds(*of, *given)

    def _each_kind(self) -> list[tuple[str, int, Work]]:
        return [(name, n, self.layer(weights)) for name, n, weights in self.model.layer_kinds]

    def mean_layer(self) -> Work:
        """The mean over all layers of the model."""
        total = self.model.layers
        return reduce(add, (n / total * layer for _, n, layer in self.kinds))

    def _sum(self) -> Values:
        """Seconds of a sum of the residual stream over tp."""
        moved = 1.0 * self.tokens * self.model.hidden * self.width
        return all_reduce(moved, self.n.tp, 1, self.cluster)

    def _tensor(self, weights: tuple[Weight, ...]) -> Seconds:
        """Sums of the residual stream over tp, attention's and the MLP's, each way: with sequence
        parallelism an all-gather and a reduce-scatter in place of each (Korthikanti et al. 2022,
        section 4.2.2), four collectives each way. A mixture's are of the tokens that come to its
        experts, over the slices of each. As much as the framework leaves exposed is waited for."""
        n, known, waits = self.n, self.calibration, self.calibration.waits
        cut, tp, slices = np.asarray(n.sequence_parallel), np.asarray(n.tp), n.expert_slices
        each, count = self._sum(), 2 * (tp > 1)
        sums = 2 * each
        if any(weight.copies > 1 for weight in weights):
            come = self.come * self.model.top_k * self.tokens * self.model.hidden * self.width
            own = all_reduce(1.0 * come, slices, 1, self.cluster)
            shared = 1 * any(weight.name.startswith("shared") for weight in weights)
            count = np.where(cut, (1 + shared) * (tp > 1) + (slices > 1), count)
            sums = np.where(cut, (1 + shared) * each + own, sums)
        launch = known.launch_collective + known.launch_rank * (np.maximum(tp, slices) - 1)
        launch = np.where(cut, 2, 1) * count * launch
        if known.gathers_operands:  # half of what moves is gathered, the other half sums
            sums = sums * np.where(cut, (1 + self.recipe.operand_bytes / self.width) / 2, 1)
        return Seconds(
            sums * np.where(cut, waits("tp"), waits("sum")) + launch,
            sums * np.where(cut, waits("tp_backward"), waits("sum_backward")) + launch,
        )

    def _context(self, core: Seconds) -> Seconds:
        """Keys and values pass round the ring while the core computes on those at hand."""
        n, model = self.n, self.model
        heads = ceil_div(model.kv_heads, n.tp) * (model.qk_dim + model.v_dim)
        ring = (n.cp - 1) * p2p(1.0 * heads * self.width * self.tokens, n.cp, n.tp, self.cluster)
        return Seconds(
            np.maximum(0.0, ring - core.forward), np.maximum(0.0, 2 * ring - core.backward)
        )

    @property
    def come(self) -> Values:
        """Tokens that come to the experts of the fullest device, for each token of its own and
        each of a token's experts."""
        come: Values = self.model.imbalance * self.n.expert_slices / self.n.tp
        return come

    def _experts(self, others: Seconds) -> Seconds:
        """Tokens go to their experts and come back: two exchanges each way. As much is waited for
        as the framework leaves exposed, or the work of another micro-batch going the other way,
        ``others``, cannot hide. Under a schedule that has a pair of them at work all the time
        it is what the sending multiprocessors are missed for."""
        token = self.model.imbalance * self.whole * self.model.hidden * self.width
        known = self.calibration
        once = exchange(
            token,
            self.model.top_k,
            self.n.ep,
            self.n.expert_slices,
            self.cluster,
            known.exchange_share,
            known.most_nodes,
        )
        twice = 2 * once
        least = np.where(self.both_ways, SENDING, known.waits("ep")) * twice
        return Seconds(
            np.maximum(least, twice - others.backward), np.maximum(least, twice - others.forward)
        )

    def embedding(self) -> Work:
        """Rows of the table summed over tp, and their gradients scattered back."""
        moved = 2.0 * self.width * self.model.hidden * self.tokens
        compute = Seconds(memory_seconds(moved, self.rates), memory_seconds(2 * moved, self.rates))
        return Work(compute, tp=Seconds(self._sum(), 0.0))

    def head(self) -> Work:
        """Logits, loss, and the sum of their gradient over tp."""
        compute = logits(
            self.model,
            self.tokens,
            self.n.tp,
            self.rates,
            self.width,
            self.recipe.gradient_bytes,
            self.calibration.loss_passes,
            self.calibration.adds_gradients,
        )
        return Work(compute, tp=Seconds(0.0, self._sum()))

    def transfer(self) -> Work:
        """What a chunk waits for its neighbours: activations one way, gradients the other.

        Each tensor-parallel rank sends its slice to its peer (scatter/gather, Narayanan et
        al. 2021, section 4.1); unless the sequence is cut, the slices are gathered again.
        """
        n = self.n
        slice_ = 1.0 * ceil_div(self.tokens, n.tp) * self.model.hidden * self.width
        hop = p2p(slice_, n.pp, n.tp * n.cp * n.dp, self.cluster)
        gather = all_gather(slice_ * n.tp, n.tp, 1, self.cluster)
        gather = np.where(np.asarray(n.sequence_parallel) | (np.asarray(n.pp) == 1), 0.0, gather)
        known = self.calibration
        beside = (np.asarray(n.pp) > 1) * known.transfer_seconds
        waited = (hop + gather) * known.waits("pp") + beside
        return Work(pp=Seconds(waited, waited))

    # the end of the step -----------------------------------------------------------------

    @property
    def both_ways(self) -> Values:
        """Whether each stage is on two devices, which share its micro-batches."""
        return np.isin(self.n.schedule, BOTH_WAYS)

    def held(self, layers: Values) -> tuple[Values, Values]:
        """(dense, expert) weights on a device of a stage of ``layers`` layers and an embedding."""
        names = ("tp", "pp", "ep", "expert_tp", "schedule")
        tables, dense, experts = _once(self.n, names, lambda n: replace(self, n=n)._weights())
        return layers * dense + tables, layers * experts

    def _weights(self) -> Iterator[Values]:
        """On a device: of embedding and head, and dense ones and experts' of the mean layer."""
        n, model = self.n, self.model

        def count(weights: tuple[Weight, ...], experts: bool) -> Values:
            kept = [w for w in weights if (w.copies > 1) == experts]
            slices = n.expert_slices if experts else n.tp
            each = (w.size * (ceil_div(w.units, slices) if w.split else w.units) for w in kept)
            spread = (ceil_div(w.copies, n.ep) if experts else 1 for w in kept)
            return sum(1.0 * a * b for a, b in zip(each, spread, strict=True))

        tables = count(model.embedding, False)
        if not model.tied:
            tables = np.where((np.asarray(n.pp) == 1) | self.both_ways, 2 * tables, tables)
        yield tables
        for experts in (False, True):
            kinds = ((many, weights) for _, many, weights in model.layer_kinds)
            yield sum(many / model.layers * count(weights, experts) for many, weights in kinds)

    def over_copies(self, dense: Values, experts: Values, width: int, layers: Values = 1) -> Values:
        """Seconds in which the copies of the model gather so many weights of ``width`` bytes each,
        or sum up gradients; those of experts among fewer of them. ZeRO-3 makes a call for each of
        the ``layers``, or for each of their matrices; else each bucket is one."""
        n = self.n
        own, of_experts = self.calibration.own_adapter, n.ep * n.expert_slices
        groups = (dense, n.dp * n.cp, n.tp), (experts, n.expert_copies, of_experts)
        each = len(products(self.model.layer)) if self.calibration.prefetch else 1
        total: Values = 0.0
        for held, size, apart in groups:
            here = np.asarray(held) > 0
            moved = 1.0 * held * width / self.calibration.copies_share
            buckets = np.ceil(held / np.maximum(BUCKET, BUCKET_OF_COPY * size))
            calls = np.where(np.asarray(n.zero) == 3, each * layers, buckets)
            total = total + here * all_gather(moved, size, apart, self.cluster, own, calls)
        return total

    def reduction(self, layers: Values, work: Seconds) -> Values:
        """Seconds that the reduction of gradients (and ZeRO's weights) is waited for.

        ``work``: seconds of one micro-batch; its backward pass can hide the reduction, its
        forward pass the gathering of weights. Of v chunks, the others are done a turn of all
        p stages earlier each: 1 + (p-1)(v-1)/v passes in all.
        """
        n, recipe = self.n, self.recipe
        zero = np.asarray(n.zero)
        kept = recipe.holds("unreduced gradients")  # summed once a step
        resharded = not recipe.holds("gathered weights")  # after the forward pass
        each = np.where((zero >= 2) & (not kept), n.microbatches, 1)
        trained = recipe.gradient_bytes > 0  # otherwise only small adapters are
        own = np.where(self.both_ways, 0.5, 1.0) * n.microbatches  # of each stage that is here
        own = np.where(kept, 1, own)
        of_gradients, of_weights = zero_passes(zero, own)
        # of the weights that ZeRO-3 gathers, those for the backward passes wait beside the sums
        again = np.where(np.asarray(n.recompute) == "full", own, 0)  # gathered for it, once more
        beside = np.where((zero == 3) & resharded, of_weights / 2 + again, 0)
        before = np.where(zero == 3, of_weights / 2, trained * of_weights)
        held = self.held(layers)
        gradients = trained * self.over_copies(*held, recipe.gradient_bytes, layers)
        weights = self.over_copies(*held, recipe.gathered_bytes, layers)
        waits = self.calibration.waits
        part = 1 - np.where(zero == 3, waits("fsdp"), waits("dp"))
        ahead = part * np.where(zero == 3, self._ahead(), 1.0)  # of what is gathered
        summed = of_gradients * gradients + beside * weights
        hidden = part * of_gradients * gradients + ahead * beside * weights
        gathered = before * weights
        hiding = each * (1 + (n.pp - 1) * (n.interleave - 1) / n.interleave)
        summed = summed - np.minimum(hidden, hiding * work.backward)
        waited = summed + gathered - np.minimum(ahead * gathered, hiding * work.forward)
        return waited + trained * self._over_replicas(held)

    def _ahead(self) -> float:
        """The part of a layer's weights that is gathered while other weights are at work: all, or
        what is fetched ahead, one matrix or as many as the prefetch bucket holds."""
        sizes = [1.0 * w.size * w.units * w.copies for w in self.model.layer]
        fetched = self.calibration.prefetch
        return min(1.0, max(fetched, *sizes) / sum(sizes)) if fetched else 1.0

    def _shard(self, held: tuple[Values, Values]) -> Values:
        """Of the (dense, expert) weights on a device, those that are its own under ZeRO."""
        mine: Values = held[0] / (self.n.dp * self.n.cp) + held[1] / self.n.expert_copies
        return mine

    def _over_replicas(self, held: tuple[Values, Values]) -> Values:
        """Seconds in which two devices that have the same stages sum up their gradients, all that
        each keeps of them."""
        n = self.n
        copies = n.dp * n.cp
        kept = np.where(np.asarray(n.zero) >= 2, self._shard(held), sum(held))
        kept = kept * self.recipe.gradient_bytes
        return self.both_ways * all_reduce(kept, 2, n.tp * copies, self.cluster)

    def optimizer(self, layers: Values) -> Values:
        """Seconds of the update, limited by memory: each state read and written once, the
        weights written, the gradients read for their norm, their cast and the update, and set
        to zero."""
        recipe, n = self.recipe, self.n
        both = self.held(layers)
        held = sum(both)
        mine = np.where(np.asarray(n.zero) >= 1, self._shard(both), held)
        gradient = recipe.gradient_bytes  # 0: the weights are frozen, and adapters are small
        states = recipe.bytes_per_parameter - gradient - recipe.weight_bytes
        written = recipe.weight_bytes if gradient else 0
        reduced = np.where(np.asarray(n.zero) >= 2, mine, held)
        moved = mine * (2 * states + written) + reduced * 4 * gradient
        return memory_seconds(moved, self.rates) + self.calibration.step_seconds


def stage_layers(n: Numbers, layers: int) -> tuple[Values, Values, Values]:
    """(layers of the first stage, of the next, of the last): the first chunks get one more. Of
    ``items``, embedding and head are one each; of one stage, all are the same."""
    chunks, inside = n.pp * n.interleave, np.asarray(n.items) & (np.asarray(n.pp) > 1)
    each, more = np.divmod(layers + 2 * inside, chunks)
    stages = (0, np.minimum(1, n.pp - 1), n.pp - 1)
    first, second, last = (each * n.interleave + ceil_div(more - at, n.pp) for at in stages)
    last = last - inside
    return first - inside, np.where(np.asarray(n.pp) > 2, second, last), last


def over_chunks(n: Numbers, layers: int, those: Values, *pieces: Work) -> Values:
    """`interleaved_seconds` of ``those`` layouts, 0 of others: of a layer, a chunk's wait, the
    embedding and the head. Of ``items``, both of these stand for a layer each."""
    seconds = [piece.seconds for piece in pieces]
    ways = [way for each in seconds for way in (each.forward, each.backward)]
    columns = np.broadcast_arrays(n.pp, n.interleave, n.microbatches, n.items, those, *ways)
    here = np.asarray(columns[4], np.bool_)
    p, v, m, items, _, *both = (column[here] for column in columns)
    layer, hop, embedding, head = map(Seconds, both[::2], both[1::2])
    less = -1.0 * items * layer
    numbers = p, v, m, layers + 2 * items
    found = np.zeros(here.shape)
    found[here] = interleaved_seconds(*numbers, layer, hop, embedding + less, head + less)
    return found


def _slower(a: Work, b: Work) -> Work:
    """Of two stages' work the one that takes longer, layout by layout."""
    behind = b.total > a.total

    def chosen(a: Seconds, b: Seconds) -> Seconds:
        return Seconds(
            np.where(behind, b.forward, a.forward), np.where(behind, b.backward, a.backward)
        )

    return Work(*(chosen(getattr(a, f.name), getattr(b, f.name)) for f in fields(Work)))


LAYER = ("tp", "cp", "ep", "expert_tp", "microbatch", "sequence_parallel", "flash_attention",
         "recompute", "schedule")  # fmt: skip
"""The fields of a layout that a layer's time depends on."""


@lru_cache(512)
def _kinds(
    model: Model,
    cluster: ClusterSpec,
    recipe: Recipe,
    sequence: int,
    calibration: Calibration,
    *given: Any,
) -> list[tuple[str, int, Work]]:
    """The ``kinds`` of layouts that have ``given`` for LAYER. Kept: many plans of a search have."""
    n = Numbers(**dict(zip(LAYER, given, strict=True)))
    return StepTime(model, cluster, n, recipe, sequence, calibration)._each_kind()


def _once(
    n: Numbers, names: Sequence[str], work: Callable[[Numbers], Iterable[Values]]
) -> Iterator[Values]:
    """``work`` of ``n``, done once for each combination of the fields ``names`` that occurs."""
    given = np.broadcast_arrays(*(getattr(n, name) for name in names))
    shape = given[0].shape
    if given[0].size < 2:
        yield from work(n)
        return
    columns = [column.ravel() for column in given]
    rows, which = combinations([numbered(column) for column in columns])
    few = Numbers(**{name: each[rows] for name, each in zip(names, columns, strict=True)})
    for values in map(np.asarray, work(few)):
        yield values[which].reshape(shape) if values.ndim else values


def _mean_layer(time: StepTime) -> Work:
    """``time.mean_layer()``, worked out once for each combination of LAYER that occurs."""

    def parts(n: Numbers) -> Iterator[Values]:
        for each in replace(time, n=n).mean_layer().parts:
            yield from (each.forward, each.backward)

    both = list(_once(time.n, LAYER, parts))
    return Work(*map(Seconds, both[::2], both[1::2]))


def _pipeline(time: StepTime) -> Iterator[Values]:
    """Layers of the fullest stage; seconds of its micro-batches, forward and backward, and of the
    bubble; and what goes to each field of Work in all micro-batches of the slowest stage."""
    n, layers = time.n, time.model.layers
    layer, embedding, head, hop = _mean_layer(time), time.embedding(), time.head(), time.transfer()
    send = n.interleave * hop
    at_first, at_second, at_last = stage_layers(n, layers)
    single = np.where(np.asarray(n.pp) == 1, 1.0, 0.0)
    first = at_first * layer + embedding + single * head + send
    last = at_last * layer + head + single * embedding + send
    slowest = _slower(first, last)
    if np.any(n.items):
        slowest = _slower(slowest, at_second * layer + send)
    every = layers * layer.total + embedding.total + head.total + n.pp * send.total
    fill = np.maximum(0.0, every - slowest.total)
    naive, several = np.asarray(n.schedule) == "naive", np.asarray(n.interleave) > 1
    bubble = np.where(naive, n.microbatches, 1) * fill
    if several.any():
        run = over_chunks(n, layers, several, layer, hop, embedding, head)
        bubble = np.where(several, np.maximum(0.0, run - n.microbatches * slowest.total), bubble)
    yield np.maximum(at_first, at_second)
    yield from (slowest.seconds.forward, slowest.seconds.backward, bubble)
    yield from (n.microbatches * each.total for each in slowest.parts)


def step_parts(
    model: Model,
    cluster: ClusterSpec,
    n: Numbers,
    recipe: str | Recipe = "mixed-adam-16",
    sequence: int = 2048,
    calibration: str | Calibration | None = None,
    framework: str | None = None,
) -> Parts[Values]:
    """The Parts of a step; arrays where ``n`` holds arrays.

    The slowest stage, the first (embedding), the next or the last (head), works through all
    micro-batches; before and after, it waits while one micro-batch passes the other stages:
    sum of stages - slowest, which for p equal stages is p-1 of a micro-batch. Of several chunks on
    a device, as `interleaved_seconds` says: (p-1)/v where they are equal.

    >>> from tiledask.plan.inputs.load import load_cluster, load_model
    >>> n = Numbers(tp=8, pp=np.array([4, 8]), dp=np.array([16, 8]), microbatches=64)
    >>> parts = step_parts(load_model("llama-2-70b"), load_cluster("512xA100-80GB"), n)
    >>> bool(parts.total[0] < parts.total[1]), bool(parts.bubble[0] < parts.bubble[1])
    (False, True)
    """
    recipe = load_recipe(recipe)
    known = calibration_of(cluster.device, recipe, calibration, framework, model.experts > 0)
    time = StepTime(model, cluster, n, recipe, sequence, known)
    names = [field.name for field in fields(Numbers) if field.name != "zero"]
    found = _once(n, names, lambda few: _pipeline(replace(time, n=few)))
    fullest, forward, backward, bubble, *parts = found
    parts += [time.reduction(fullest, Seconds(forward, backward)), bubble, time.optimizer(fullest)]
    return known.scale * Parts[Values](*parts)
