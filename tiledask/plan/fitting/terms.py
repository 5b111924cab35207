"""Every term of the memory, once: tensor class and moment, bytes, formula and source.

every stage of one layout     Python integers, exact however large     ->  rows of its ledger
one stage of many layouts     columns of 64 bits                       ->  peaks, for a search

one stage's devices      dp x cp copies                dense weights: shards over dp x cp
                         = ep expert groups            experts: 1/ep of them on each device,
                           x dp x cp / ep copies       their shards over dp x cp / ep
                                                       (tp x dp x cp / (ep x expert_tp))
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import mul
from typing import Any

import numpy as np

from tiledask.plan.inputs.framework_memory import memory_of
from tiledask.plan.inputs.kinds import Saved
from tiledask.plan.inputs.layout import Layout, Numbers, expert_copies, expert_slices
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import DEVICE, LARGEST_WEIGHT, Recipe, State
from tiledask.plan.inputs.run import Item
from tiledask.plan.ledger import ALWAYS, Row

__all__ = ["Term", "Terms", "fullest", "rows"]

FORWARD, LOSS, BACKWARD, STEP = "forward", "loss", "backward", "optimizer step"
PHASES = (FORWARD, LOSS, BACKWARD)
ZERO = "Rajbhandari et al. 2020, arXiv:1910.02054, Table 1"
KORTHIKANTI = "Korthikanti et al. 2022, arXiv:2205.05198"
ENDS = f"{KORTHIKANTI}, section 4.3"
CACHE = "keys and values, 2 x heads x width, or the latent: DeepSeek-V2, arXiv:2405.04434"
STATES = "state of each head, 4 B, and the short convolution's window: arXiv:2405.21060"
MTP = "DeepSeek-V3, arXiv:2412.19437, section 2.2"
LOGITS = "{} B x {:,} logits"


Term = tuple[str, str, Any, Any, tuple[Any, ...], str]
"""(tensor class, moment, whether a stage has it, if only in 0 bytes; its bytes, 0 where it does
not; the words of the formula, or what makes them, and the numbers in them; source). Each number is
the same on all stages, or a column."""


def _product(
    tensor: str, moment: str, there: Any, words: str, factors: tuple[Any, ...], source: str
) -> Term:
    return tensor, moment, there, there * prod(factors), (words, *factors), source


def _has(number: Any) -> Any:
    """1 where there is any, else 0, in the integers of ``number``, Python's or those of 64 bits."""
    return (number > 0).astype(number.dtype) if isinstance(number, np.ndarray) else number > 0


def _larger(one: Any, other: Any) -> Any:
    """The larger of two numbers; stage by stage if they are columns."""
    columns = isinstance(one, np.ndarray) or isinstance(other, np.ndarray)
    return np.maximum(one, other) if columns else max(one, other)


def fullest(terms: Iterable[Term]) -> Any:
    """Bytes of each stage at its fullest moment."""
    moments: dict[str, Any] = {ALWAYS: 0}
    for _, moment, _, size, *_ in terms:
        moments[moment] = moments.get(moment, 0) + size
    return moments.pop(ALWAYS) + reduce(_larger, moments.values())


def rows(terms: Iterable[Term], stages: int) -> Iterator[Row]:
    """The rows of a ledger, stage by stage."""
    every = list(terms)
    for stage in range(stages):
        for tensor, moment, there, size, (words, *numbers), source in every:
            has, nbytes, *given = (
                n[stage] if isinstance(n, np.ndarray) else n for n in (there, size, *numbers)
            )
            if has:
                make = words.format if isinstance(words, str) else words
                yield Row(stage, tensor, moment, nbytes, make(*given), source)


@dataclass(frozen=True, eq=False)
class Terms:
    """The terms of stages, of one layout or of many, in the order of a ledger's rows."""

    model: Model
    recipe: Recipe
    layout: Layout | Numbers
    tokens: Any
    local_tokens: Any  # Of ``tokens`` those outside the tensor-parallel products
    items: tuple[Item, ...]  # A layer of each kind, the embedding, the head, the tied copy in it
    recomputes: Any  # Whether the backward pass computes anything again
    here: tuple[Any, ...]  # How many of each of ``items`` are on the stage
    kept: tuple[Any, ...]
    """Micro-batches in flight, as ``stages_in_flight`` has them: of the layers of each kind, of the
    embedding and the head."""

    def __iter__(self) -> Iterator[Term]:
        yield from self.states(DEVICE)
        if np.any(self.layout.zero >= 2):
            yield from self._gathered()
        yield from self._training() if self.recipe.trains else self._serving()

    def _most(self, numbers: Iterable[Any]) -> Any:
        """The largest of the ``numbers`` of items that are on the stage."""
        pairs = zip(self.here, numbers, strict=False)
        return reduce(_larger, (_has(n) * each for n, each in pairs))

    def states(self, place: str) -> Iterator[Term]:
        """Weights and what training keeps for each: a term for each state that lies there."""
        layout, held = self.layout, {}
        items = list(zip(self.here, self.items, strict=True))
        for state in (state for state in self.recipe.states if state.place == place):
            if state.of not in held:
                some = {"layers": items[:-3], "embeddings": items[-3:]}.get(state.of, items)
                at = 2 * (state.of == "adapters")
                dense, expert = (sum(n * item[at + k] for n, item in some) for k in (0, 1))
                shard = -(-dense // (layout.dp * layout.cp))
                if self.model.experts:
                    shard = shard - (-expert // expert_copies(layout))
                held[state.of] = dense, expert, shard
            dense, expert, shard = held[state.of]
            size = state.on_device(dense + expert, shard, layout.zero)
            several = (layout.dp * layout.cp > 1) | (expert_copies(layout) > 1)
            sharded = state.sharded(layout.zero) & several
            source = ZERO if np.all(sharded) else self.recipe.source
            formula = _state_formula, state, layout, sharded, dense, expert
            yield state.tensor, state.moment, 1, size, formula, source

    def _gathered(self) -> Iterator[Term]:
        """What ZeRO holds whole for a while: one item's weights, its gradients before they are
        reduced; or where the framework goes weight by weight, the live ones or the largest."""
        layout, recipe = self.layout, self.recipe
        framework = memory_of(recipe.framework)
        # ZeRO shards what others hold copies of; what lies elsewhere is brought to one copy too
        apart = (layout.dp * layout.cp > 1) | recipe.offloads_weights
        beside = (expert_copies(layout) > 1) | recipe.offloads_weights
        *sizes, head, tied = (
            _has(n) * (apart * item.dense + beside * item.expert)
            for n, item in zip(self.here, self.items, strict=True)
        )
        sizes.append(head + tied)
        names = *(kind.name for kind in self.model.layer_kinds), "embedding", "head"
        largest = self._most(each.largest for each in self.items)
        moments = PHASES if recipe.trains else PHASES[:1]
        weights = recipe.gathered_bytes, framework.live_weights
        gradients = recipe.gradient_bytes, framework.live_gradients
        for tensor, there, at, (width, live) in (
            ("gathered weights", layout.zero == 3, moments, weights),
            ("unreduced gradients", layout.zero >= 2, (BACKWARD,), gradients),
        ):
            size, formula = reduce(_larger, sizes), (_largest_formula, names, *sizes)
            if live:
                size = (size <= live) * size + (size > live) * _larger(largest, live)
                words = "{2} B x {0:,} parameters, the largest weight or {1:,} live ones"
                formula = words, size, live
            if width and not recipe.holds(tensor):
                here, every = there & (size > 0), there * (width * size)
                for moment in at:
                    yield tensor, moment, here, every, (*formula, width), ZERO

    def _training(self) -> Iterator[Term]:
        """Activations and what is computed with them, at each moment of a training step."""
        recipe, width, ends = self.recipe, self.recipe.compute_bytes, _has(self.here[-2])
        cut = (self.layout.sequence_parallel > 0) & (self.layout.tp > 1)
        kept = list(self._kept())
        for moment in PHASES:
            for tensor, _, there, size, formula, source in kept:
                here = ends if moment == LOSS else 1  # only a stage with the head has it
                yield tensor, moment, there * here, size * here, formula, source
        if np.any(ends):
            yield from self._logits(ends)
        source, again = f"{KORTHIKANTI}, section 4.2.2", self.recomputes
        whole = self.model.hidden * self.model.streams * self.tokens
        if np.any(cut):
            words, factors = "one layer's input, whole", (width, whole)
            yield _product("gathered sequence", FORWARD, cut, words, factors, source)
            words = "one layer's input, gathered again, and its gradient, whole"
            yield _product("gathered sequence", BACKWARD, cut, words, (2, *factors), source)
        there, layers = _has(sum(self.here[:-3])), self.items[:-3]
        size = self._most(layer.gradients for layer in layers)
        why = ("of the residual stream and of the two largest tensors of one layer",)
        yield "activation gradients", BACKWARD, there, size, why, "upper bound"
        if np.any(again):
            dropped = self._most(n.whole for n in layers) - self._most(n.kept for n in layers)
            there, size = there * again, dropped * again
            formula = "what {} recomputation dropped of one layer", self.layout.recompute
            yield "recomputed activations", BACKWARD, there, size, formula, KORTHIKANTI
        if memory_of(recipe.framework).keeps_buffers:  # of gradients that are added up already
            framework, there = f"framework {recipe.framework}", cut & ends
            words = "{} B x {:,} parameters, a layer's matrices"
            factors = width, self._most(layer.matrices for layer in layers)
            yield _product("gradient buffers", ALWAYS, 1, words, factors, framework)
            words, factors = "{} B x {:,} of the head's input", (width, there * whole)
            yield _product("gathered sequence", LOSS, there, words, factors, framework)
        for work in (work for work in recipe.working if work.of == LARGEST_WEIGHT):
            words = "{} B x {:,} parameters of the largest weight"
            factors = work.bytes, self._most(item.largest for item in self.items)
            yield _product(work.tensor, work.moment, 1, words, factors, recipe.source)
        yield "activations", STEP, 1, 0, ("freed by the backward pass",), ""

    def _kept(self) -> Iterator[Term]:
        """What is kept from the forward pass."""
        model, layout, width = self.model, self.layout, self.recipe.compute_bytes
        *layers, embeddings, heads, _ = self.here
        *of_layers, of_embedding, of_head = self.kept
        here, tokens = sum(layers), model.hidden * self.local_tokens
        each = [layer.kept for layer in self.items[:-3]]
        how = _kept_formula, model.layer_kinds, layout.recompute, layout.schedule, here
        formula, size = (*how, *of_layers, *each), sum(map(mul, of_layers, each))
        yield "activations", FORWARD, 1, size, formula, f"{KORTHIKANTI}, Table 2"
        if per_token := model.dropout + width * model.embedding_norm:
            words = "dropout mask, 1 B, and norm input of each token, x {} micro-batches"
            there, many = _has(embeddings), (of_embedding, per_token, tokens)
            yield _product("embedding activations", FORWARD, there, words, many, ENDS)
        if memory_of(self.recipe.framework).keeps_sent:
            v, kept = layout.interleave, sum(of_layers)
            senders = (layout.pp > 1) * (v - _has(heads))
            n = senders * layout.microbatches - (-senders * (kept * v // np.maximum(here, 1)) // v)
            words = "{} B of each number sent x {}: outputs in flight, and a buffer for each "
            words, source = words + "micro-batch's gradient", f"framework {self.recipe.framework}"
            yield _product("sent activations", FORWARD, _has(n), words, (width, n, tokens), source)
        words = "inputs of the final norm and of the output projection, {} B each, x {} micro-"
        words, inputs = f"{words}batches", 1 + (model.final_norm and model.norm != "none")
        factors = width, of_head, tokens, (1 + model.mtp_layers) * inputs
        yield _product("head activations", FORWARD, _has(heads), words, factors, ENDS)
        if model.mtp_layers:
            words = "{} B of each of {} layers that predict further tokens, x {} micro-batches"
            further = each[model.kind_of[-1]], model.mtp_layers, of_head
            yield _product("MTP activations", FORWARD, _has(heads), words, further, MTP)

    def _logits(self, ends: Any) -> Iterator[Term]:
        """Logits up to their gradient, and what else the framework's loss holds."""
        recipe, waiting = self.recipe, self.kept[-1]
        elements = self.tokens * -(-self.model.vocab // self.layout.tp)  # of a micro-batch
        elements = (1 + self.model.mtp_layers) * elements
        loss = memory_of(recipe.framework).loss_bytes
        words = f"{LOGITS} x {{}} micro-batches"
        each, cast = min(4, loss - 2), "cast back to the precision of the product"
        for moment in PHASES:
            factors = each, elements, waiting - ends * (moment == BACKWARD)
            yield _product("logits", moment, ends, words, factors, ENDS)
        found = [("logit gradients", LOSS, ends, recipe.compute_bytes, cast)]
        if more := loss - 2 - each:
            what = "log-probabilities and their gradient"
            found.append((what, LOSS, ends, more, f"framework {recipe.framework}"))
        for work in (work for work in recipe.working if work.of != LARGEST_WEIGHT):
            split = ends * (self.layout.tp > 1)
            found.append((work.tensor, work.moment, split, work.bytes, recipe.source))
        for tensor, moment, there, size, source in found:
            yield _product(tensor, moment, there, LOGITS, (size, elements), source)

    def _serving(self) -> Iterator[Term]:
        """Keys and values, latent ones whole on every device; one forward pass, layer by layer."""
        model, width, here = self.model, self.recipe.compute_bytes, self.here[:-3]
        elements = self.tokens * -(-model.vocab // self.layout.tp)
        if cached := self.recipe.cached:
            kinds = model.layer_kinds
            each = [self._numbers(kind.cached, 1) for kind in kinds]
            some = sum(n for n, one in zip(here, each, strict=True) if np.any(one))
            all_ = sum(map(mul, here, each))
            tokens = -(-cached // self.layout.cp)
            words = "{3} layers x {0:,} tokens x {1} B x {2:,} numbers of a token"
            factors: tuple[Any, ...] = tokens, width, all_ // _larger(some, 1)
            size = tokens * width * all_
            source = CACHE
            yield "key-value cache", ALWAYS, 1, size, (words, *factors, some), source
            if any(kind.state for kind in kinds):
                of = [self._numbers(kind.state, width) for kind in kinds]
                many = -(-cached // (self.tokens // self.layout.microbatch * self.layout.cp))
                words = "{:,} sequences x {:,} B in all layers"
                factors = many, sum(map(mul, here, of))
                yield _product("recurrent states", ALWAYS, 1, words, factors, STATES)
        why = ("tensors of one layer, all at once",)
        size = self._most(layer.served for layer in self.items[:-3])
        yield "working activations", FORWARD, _has(sum(here)), size, why, "upper bound"
        source, factors = "one forward pass over the whole sequence", (width, elements)
        yield _product("logits", FORWARD, _has(self.here[-2]), LOGITS, factors, source)

    def _numbers(self, kept: Iterable[Saved], width: int) -> Any:
        """Numbers of the tensors ``kept`` on a device, times their bytes or ``width``."""
        tp = self.layout.tp
        return sum(
            ((-(-each.units // tp)) if each.split else each.units)
            * each.size
            * (each.itemsize or width)
            for each in kept
        )


def _state_formula(state: State, layout: Layout, sharded: bool, dense: int, expert: int) -> str:
    what = "parameters" if state.of == "parameters" else f"parameters of {state.of}"
    each = f"{state.bytes} B" + (f" / {state.per}" if state.per > 1 else "")
    copies = f"dp {layout.dp}" + (f" x cp {layout.cp}" if layout.cp > 1 else "")
    held = f"({copies} / ep {layout.ep})"
    if expert_slices(layout) != layout.tp:
        held = f"(tp {layout.tp} x {copies} / (ep {layout.ep} x expert_tp {layout.expert_tp}))"
    formula = f"{each} x {dense:,} {what}" + f" / {copies}" * sharded
    if expert:
        formula += f" + {each} x {expert:,} of experts" + f" / {held}" * sharded
    return formula + f" (ZeRO-{layout.zero})" * sharded


def _largest_formula(names: tuple[str, ...], *numbers: int) -> str:
    *sizes, width = numbers
    name = names[sizes.index(max(sizes))]
    return f"{width} B x {max(sizes):,} parameters of the largest item, {name}"


def _kept_formula(
    kinds: tuple[Any, ...], recompute: str, schedule: str, here: int, *numbers: int
) -> str:
    terms = [
        f"{size:,} B a {kind.name.removeprefix('dense ')} and micro-batch x {n}"
        for kind, n, size in zip(kinds, numbers, numbers[len(kinds) :], strict=False)
        if n or len(kinds) == 1
    ]
    how = f"(recompute {recompute}, {schedule}, {here} layers here)"
    return f"{' + '.join(terms)} layers in flight {how}"
