"""The time of a training step as plain formulas: one layout, or ten thousand at once.

total = m x (compute + recompute + tp + cp + ep + pp)  + bubble + dp + optimizer
        the slowest stage, each micro-batch            fill and drain, end of the step
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from tiledask.plan.arrays import Array, Values, combinations, numbered, stacked
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.kinds import LayerKind
from tiledask.plan.inputs.layout import SELECTIVE_OP, Numbers
from tiledask.plan.inputs.model import Model, Weight
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.inputs.run import check_timed
from tiledask.plan.pipelines.schedules import BOTH_WAYS
from tiledask.plan.timing.calibration import Calibration, calibration_of
from tiledask.plan.timing.collective_time import all_gather, all_reduce, exchange, p2p, zero_passes
from tiledask.plan.timing.layer_time import LayerTime, products, shape_of
from tiledask.plan.timing.roofline import ceil_div

__all__ = ["PIECE", "Parts", "StepTime", "stage_layers", "step_parts"]

SENDING = 20 / 132
"""Share of a device's multiprocessors that send tokens to experts beside other work (DeepSeek-V3,
arXiv:2412.19437, section 3.2.2)."""
BUCKET, BUCKET_OF_COPY = 4e7, 1e6
"""Numbers in a bucket of gradients: at least, and for each copy (Megatron-Core's default)."""
PIECE = ("compute", "recompute", "tp", "cp", "ep", "pp")
"""What the seconds of a micro-batch in a piece go to: [these, forward and backward, layouts]."""
NOTHING = np.zeros((2, 1))
LAYER = ("tp", "cp", "ep", "expert_tp", "microbatch", "sequence_parallel", "flash_attention",
         "recompute", "schedule")  # fmt: skip
"""The fields of a layout that a layer's time depends on."""


@dataclass(frozen=True)
class Parts:
    """Seconds of a step on the stage that the others wait for: numbers, or columns of them. All
    but the first two and the last are waiting."""

    compute: Any  # products, attention core and element-wise kernels, forward and backward
    recompute: Any  # what the backward pass computes again
    tp: Any  # for tensor-parallel collectives
    cp: Any  # for keys and values of other pieces of the sequence
    ep: Any  # for tokens on their way to experts and back
    pp: Any  # for transfers between stages
    dp: Any  # for gradients (and ZeRO's weights) of the copies of the model, and of its stages
    bubble: Any  # of the slowest stage while the pipeline is not yet filled, or draining
    optimizer: Any  # updating the weights

    @cached_property
    def total(self) -> Any:
        """Seconds of the step."""
        return sum(getattr(self, each.name) for each in fields(Parts))


def _piece(**seconds: Array) -> Array:
    return np.stack(np.broadcast_arrays(*(seconds.get(name, NOTHING) for name in PIECE)))


@dataclass(frozen=True)
class StepTime(LayerTime):
    """What the time of a step is made of, for one layout or for arrays of them."""

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
        names, moved = self.recipe.adapters.matrices if self.recipe.adapters else (), NOTHING
        for weight in (w for w in weights if w.inputs and w.name in names):
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
        heads = sum(ceil_div(each.groups, n.tp) * (each.qk + each.v) for each in rings)
        ring = (n.cp - 1) * p2p(1.0 * heads * width * self.tokens, n.cp, n.tp, self.cluster)
        waited = np.maximum(0.0, stacked(ring, 2 * ring) - core)
        collectives = {"tp": self._tensor(kind), "cp": waited}
        if mixture:  # two exchanges of tokens each way: what is exposed of them is waited for, or
            # what the work of the opposite pass cannot hide
            others = stacked(compute[0], compute[1] + again)
            token = self.model.imbalance * self.own_tokens * self.model.hidden * width
            links = n.ep, n.expert_slices, self.cluster, known.exchange_share, known.most_nodes
            twice = 2 * exchange(token, self.model.top_k, *links)
            least = np.where(self.both_ways, SENDING, known.exposed["ep"]) * twice
            collectives["ep"] = np.maximum(least, twice - others[::-1])
        repeated = {name: stacked(c[0], c[1] + full * c[0]) for name, c in collectives.items()}
        if known.floor_seconds:
            short = np.maximum(0.0, known.floor_seconds - compute.sum(0) - again)
            compute = stacked(compute[0], compute[1] + short)
        return _piece(compute=compute, recompute=stacked(0.0, again), **repeated)

    @cached_property
    def kinds(self) -> list[tuple[str, int, Array]]:
        """(name, how many there are, the seconds of one) of each kind of layer."""
        return [(kind.name, kind.many, self.layer(kind)) for kind in self.model.layer_kinds]

    def mean_layer(self) -> Array:
        """The mean over all layers of the model."""
        parts = (n / self.model.layers * layer for _, n, layer in self.kinds)
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
        cut, tp, slices = np.asarray(n.sequence_parallel), np.asarray(n.tp), n.expert_slices
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
        columns, width = ceil_div(self.model.vocab, self.n.tp), self.recipe.compute_bytes
        passed = self.calibration.loss_passes * stacked(24 + width, 12 + width)
        product = self.product(self.tokens, self.model.hidden, columns, self.rates, width)
        logits = product + passed * self.tokens * columns / self.rates.memory
        head = _piece(compute=logits, tp=stacked(0.0, self._sum()))
        if not (further := self.model.mtp_layers):
            return head
        joined = self.weight_products(tuple(w for w in self.model.head if "MTP" in w.name)[:1])
        layer = self.kinds[self.model.kind_of[-1]][-1] + _piece(compute=joined)
        total: Array = head + further * (head + layer)
        return total

    def transfer(self) -> Array:
        """Waiting for neighbours. Each tensor-parallel rank sends a slice to its peer, and gathers
        the slices unless the sequence is cut (Narayanan et al. 2021, section 4.1)."""
        n, known, pp = self.n, self.calibration, np.asarray(self.n.pp)
        wide = self.model.hidden * self.model.streams * self.recipe.compute_bytes
        slice_ = 1.0 * ceil_div(self.tokens, n.tp) * wide
        hop = p2p(slice_, n.pp, n.tp * n.cp * n.dp, self.cluster)
        gather = all_gather(slice_ * n.tp, n.tp, 1, self.cluster)
        gather = np.where(np.asarray(n.sequence_parallel) | (pp == 1), 0.0, gather)
        waited = (hop + gather) * known.exposed["pp"] + (pp > 1) * known.transfer_seconds
        return _piece(pp=stacked(waited, waited))

    @property
    def both_ways(self) -> Values:
        """Whether each stage is on two devices, which share its micro-batches."""
        return np.isin(self.n.schedule, BOTH_WAYS)

    def held(self, layers: Values) -> Array:
        """(dense, expert) weights on a device of a stage of ``layers`` layers and an embedding."""
        n, model = self.n, self.model

        def count(weights: tuple[Weight, ...], experts: bool) -> Values:
            slices = n.expert_slices if experts else n.tp
            own = (w for w in weights if (w.copies > 1) == experts)
            return sum(
                (w.size * (ceil_div(w.units, slices) if w.split else w.units) * 1.0)
                * (ceil_div(w.copies, n.ep) if experts else 1)
                for w in own
            )

        tables, kinds = count(model.embedding, False), model.layer_kinds
        if not model.tied:
            tables = np.where((np.asarray(n.pp) == 1) | self.both_ways, 2 * tables, tables)
        dense, experts = (
            sum(kind.many / model.layers * count(kind.weights, of) for kind in kinds)
            for of in (False, True)
        )
        return stacked(layers * dense + tables, layers * experts)

    def reduction(self, held: Array, layers: Values, work: Array) -> Values:
        """Seconds that the reduction of gradients (and ZeRO's weights) is waited for.

        ``held``: (dense, expert) weights of a device, in ``layers``. ``work``: seconds of one
        micro-batch; its backward pass can hide the reduction, its forward pass the gathering of
        weights, in 1 + (p-1)(v-1)/v passes: each other chunk is done p stages earlier.
        """
        n, recipe, known, waits = self.n, self.recipe, self.calibration, self.calibration.exposed
        zero, sharded = np.asarray(n.zero), np.asarray(n.zero) == 3
        kept = recipe.holds("unreduced gradients")  # summed once a step
        resharded = not recipe.holds("gathered weights")  # after the forward pass
        each = np.where((zero >= 2) & (not kept), n.microbatches, 1)
        trained = recipe.gradient_bytes > 0  # otherwise only small adapters are
        own = np.where(self.both_ways, 0.5, 1.0) * n.microbatches  # of each stage that is here
        own = np.where(kept, 1, own)
        of_gradients, of_weights = zero_passes(zero, own)
        # of the weights that ZeRO-3 gathers, those for the backward passes wait beside the sums
        again = np.where(np.asarray(n.recompute) == "full", own, 0)  # gathered for it, once more
        beside = np.where(sharded & resharded, of_weights / 2 + again, 0)
        before = np.where(sharded, of_weights / 2, trained * of_weights)
        # the model's copies sum up gradients, and gather weights: a call is a bucket, in ZeRO-3 a
        # layer or one of its matrices
        widths = np.array([[recipe.gradient_bytes], [recipe.gathered_bytes]]) / known.copies_share
        groups = (n.dp * n.cp, n.tp), (n.expert_copies, n.ep * n.expert_slices)
        matrices, seconds = len(products(self.model.layer)) if known.prefetch else 1, NOTHING
        for mine, (size, apart) in zip(held, groups, strict=True):
            if mine.any():
                buckets = np.ceil(mine / np.maximum(BUCKET, BUCKET_OF_COPY * size))
                calls = np.where(sharded, matrices * layers, buckets)
                run = size, apart, self.cluster, known.own_adapter, calls
                seconds = seconds + (mine > 0) * all_gather(mine * widths, *run)
        gradients, weights = trained * seconds[0], seconds[1]
        part = 1 - np.where(sharded, waits["fsdp"], waits["dp"])
        # of the gathered weights those hidden behind others' work: of ZeRO-3 what is fetched ahead,
        # a layer, or one matrix or as many as the prefetch bucket holds
        ahead, fetched = part, known.prefetch
        if fetched:
            sizes = [1.0 * w.size * w.units * w.copies for w in self.model.layer]
            ahead = part * np.where(sharded, min(1.0, max(fetched, *sizes) / sum(sizes)), 1.0)
        summed = of_gradients * gradients + beside * weights
        hidden = part * of_gradients * gradients + ahead * beside * weights
        gathered = before * weights
        hiding = each * (1 + (n.pp - 1) * (n.interleave - 1) / n.interleave)
        summed = summed - np.minimum(hidden, hiding * work[1])
        waited: Values = summed + gathered - np.minimum(ahead * gathered, hiding * work[0])
        if trained and np.any(self.both_ways):
            # two devices that have the same stages sum up their gradients, all that each keeps
            shard = held[0] / (n.dp * n.cp) + held[1] / n.expert_copies
            left = np.where(zero >= 2, shard, held.sum(0)) * recipe.gradient_bytes
            sums = all_reduce(left, 2, n.tp * n.dp * n.cp, self.cluster)
            waited = waited + self.both_ways * sums
        return waited

    def optimizer(self, held: Array) -> Values:
        """Seconds of the update, limited by memory: states read and written once, weights written,
        gradients read for their norm, their cast and the update, and set to zero."""
        n, recipe, zero = self.n, self.recipe, np.asarray(self.n.zero)
        shard = held[0] / (n.dp * n.cp) + held[1] / n.expert_copies  # its own under ZeRO
        mine, reduced = (np.where(zero >= least, shard, held.sum(0)) for least in (1, 2))
        gradient = recipe.gradient_bytes  # 0: the weights are frozen, and adapters are small
        states = recipe.bytes_per_parameter - gradient - recipe.weight_bytes
        written = recipe.weight_bytes if gradient else 0
        moved = mine * (2 * states + written) + reduced * 4 * gradient
        seconds: Values = moved / self.rates.memory + self.calibration.step_seconds
        return seconds


def stage_layers(n: Numbers, layers: int) -> tuple[Values, Values, Values]:
    """(layers of the first stage, of the next, of the last), without embedding and head."""
    chunks, inside = n.pp * n.interleave, np.asarray(n.items) & (np.asarray(n.pp) > 1)
    each, more = np.divmod(layers + 2 * inside, chunks)
    stages = (0, np.minimum(1, n.pp - 1), n.pp - 1)
    first, second, last = (each * n.interleave + ceil_div(more - at, n.pp) for at in stages)
    last = last - inside
    return first - inside, np.where(np.asarray(n.pp) > 2, second, last), last


def _once(n: Numbers, names: Sequence[str], work: Callable[[Numbers], Array]) -> Array:
    """``work`` of ``n``, done once for each combination of the fields ``names`` that occurs."""
    given = np.broadcast_arrays(*(getattr(n, name) for name in names))
    if given[0].size < 2:
        return work(n)
    columns = [column.ravel() for column in given]
    rows, which = combinations([numbered(column) for column in columns])
    found = work(Numbers(**{name: each[rows] for name, each in zip(names, columns, strict=True)}))
    return np.broadcast_to(found, (*found.shape[:-1], len(rows)))[..., which]


def _pipeline(time: StepTime) -> Array:
    """[layers of the fullest stage, its (dense, expert) weights on a device; of the slowest stage
    seconds of a micro-batch (forward, backward), of the bubble, of each PIECE in all]."""
    n, layers = time.n, time.model.layers
    layer = _once(n, LAYER, lambda few: replace(time, n=few).mean_layer())
    pieces, send = (layer, time.embedding(), time.head()), n.interleave * time.transfer()
    seconds, sent = [piece.sum((0, 1)) for piece in pieces], send.sum((0, 1))
    first, second, last = stage_layers(n, layers)
    single, zero = 1 * (np.asarray(n.pp) == 1), 0
    # layers, embeddings and heads of the stages that may be the slowest
    slowest, *others = stacked(first, 1, single), stacked(last, single, 1)
    others += [stacked(second, zero, zero)] if np.any(n.items) else []

    def total(stage: Array) -> Array:
        work: Array = sent + sum(n * each for n, each in zip(stage, seconds, strict=True))
        return work

    for other in others:
        slowest = np.where(total(other) > total(slowest), other, slowest)
    work = sum(many * piece for many, piece in zip(slowest, pieces, strict=True)) + send
    fill = np.maximum(0.0, total(stacked(layers, 1, 1)) + (n.pp - 1) * sent - total(slowest))
    naive = np.asarray(n.schedule) == "naive"
    bubble = np.where(naive, n.microbatches, 1 / np.asarray(n.interleave)) * fill
    fullest = np.maximum(first, second)
    parts = n.microbatches * work.sum(1)
    return stacked(fullest, *time.held(fullest), *work.sum(0), bubble, *parts)


def step_parts(
    model: Model,
    cluster: ClusterSpec,
    n: Numbers,
    recipe: str | Recipe = "mixed-adam-16",
    sequence: int = 2048,
    calibration: str | Calibration | None = None,
    framework: str | None = None,
) -> Parts:
    """The Parts of a step; arrays where ``n`` holds arrays.

    The slowest stage, the first (embedding), the next or the last (head), works through all
    micro-batches; before and after, it waits while one micro-batch passes the other stages: for p
    equal stages of v chunks, (p-1)/v of a micro-batch.

    >>> from tiledask.plan.inputs.load import load_cluster, load_model
    >>> n = Numbers(tp=8, pp=np.array([4, 8]), dp=np.array([16, 8]), microbatches=64)
    >>> parts = step_parts(load_model("llama-2-70b"), load_cluster("512xA100-80GB"), n)
    >>> bool(parts.total[0] < parts.total[1]), bool(parts.bubble[0] < parts.bubble[1])
    (False, True)
    """
    recipe = load_recipe(recipe)
    check_timed(recipe)
    known = calibration_of(cluster.device, recipe, calibration, framework, model.experts > 0)
    time = StepTime(model, cluster, n, recipe, sequence, known)
    names = [field.name for field in fields(Numbers) if field.name != "zero"]
    found = _once(n, names, lambda few: _pipeline(replace(time, n=few)))
    fullest, held, work, bubble, parts = found[0], found[1:3], found[3:5], found[5], found[6:]
    waited = time.reduction(held, fullest, work)
    shape = np.broadcast_shapes(*map(np.shape, vars(n).values()))
    columns = known.scale * stacked(*parts, waited, bubble, time.optimizer(held))
    return Parts(*columns.reshape(len(columns), *shape))
