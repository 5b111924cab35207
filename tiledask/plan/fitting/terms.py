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
from itertools import chain
from math import prod
from operator import mul
from typing import Any, NamedTuple

import numpy as np

from tiledask.plan.fitting.activations import LayerBytes
from tiledask.plan.fitting.in_flight import InFlight
from tiledask.plan.inputs.layout import Layout, Numbers
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import DEVICE, Recipe, State
from tiledask.plan.inputs.run import ItemParameters
from tiledask.plan.ledger import ALWAYS, Row
from tiledask.plan.timing.calibration import holds

__all__ = ["Costs", "Term", "Terms", "fullest", "rows"]

FORWARD, LOSS, BACKWARD, STEP = "forward", "loss", "backward", "optimizer step"
MOMENTS = (FORWARD, LOSS, BACKWARD)
ZERO = "Rajbhandari et al. 2020, arXiv:1910.02054, Table 1"
KORTHIKANTI = "Korthikanti et al. 2022, arXiv:2205.05198"
ENDS = f"{KORTHIKANTI}, section 4.3"
CACHE = "keys and values, 2 x heads x width, or the latent: DeepSeek-V2, arXiv:2405.04434"
LOGITS = "{} B x {:,} logits"


class Term(NamedTuple):
    """One tensor class at one moment; each number is the same on all stages, or a column."""

    tensor: str
    moment: str
    there: Any
    """Whether a stage has it, if only in 0 bytes."""
    bytes: Any
    """0 on a stage that does not have it."""
    formula: tuple[Any, ...]
    """The words, or what makes them, and the numbers in them."""
    source: str


def _product(
    tensor: str, moment: str, there: Any, words: str, factors: tuple[Any, ...], source: str
) -> Term:
    """The term of a product, whose factors are the numbers in its words."""
    return Term(tensor, moment, there, there * prod(factors), (words, *factors), source)


def _has(number: Any) -> Any:
    """1 where there is any, else 0, in the integers of ``number``, Python's or those of 64 bits."""
    return (number > 0).astype(number.dtype) if isinstance(number, np.ndarray) else number > 0


def fullest(terms: Iterable[Term]) -> Any:
    """Bytes of each stage at its fullest moment: what is always there, and the most beside it."""
    moments: dict[str, Any] = {ALWAYS: 0}
    for term in terms:
        moments[term.moment] = moments.get(term.moment, 0) + term.bytes
    always = moments.pop(ALWAYS)
    return always + _largest(moments.values())


def rows(terms: Iterable[Term], stages: int) -> Iterator[Row]:
    """The rows of a ledger, stage by stage."""

    def here(number: Any) -> Any:
        return number[stage] if isinstance(number, np.ndarray) else number

    every = list(terms)
    for stage in range(stages):
        for tensor, moment, there, size, (words, *numbers), source in every:
            if here(there):
                make = words.format if isinstance(words, str) else words
                yield Row(stage, tensor, moment, here(size), make(*map(here, numbers)), source)


def _largest(numbers: Iterable[Any]) -> Any:
    """The largest of several numbers; stage by stage if they are columns."""
    first, *others = numbers
    for other in others:
        columns = isinstance(first, np.ndarray) or isinstance(other, np.ndarray)
        first = np.maximum(first, other) if columns else max(first, other)
    return first


class Costs(NamedTuple):
    """What a layout's terms are made of on all of its stages; each number is one, or a column."""

    whole: Any
    cut: Any
    """Of ``whole`` tokens of a micro-batch on one device those outside the tensor-parallel
    products; see ``tokens_of``."""
    layers: tuple[LayerBytes, ...]
    """Of a dense layer and, in a model with experts, of a mixture."""
    items: tuple[ItemParameters, ...]
    """Of these, the embedding, the head and the tied copy in it."""
    recomputes: Any
    """Whether the backward pass computes anything again."""


@dataclass(frozen=True, eq=False)
class Terms:
    """The terms of stages, of one layout or of many, in the order of a ledger's rows."""

    model: Model
    recipe: Recipe
    layout: Layout | Numbers
    costs: Costs
    held: InFlight

    def __iter__(self) -> Iterator[Term]:
        step = self._training() if self.recipe.trains else self._serving()
        return chain(self.states(DEVICE), self._gathered(), self._cache(), step)

    def _items(self) -> list[tuple[Any, ItemParameters]]:
        """Of each item: how many are on the stage, and its parameters."""
        many = list(self.held[:5])
        if not self.model.experts:
            del many[1]  # no mixtures
        return list(zip(many, self.costs.items, strict=True))

    def _most(self, numbers: Iterable[Any]) -> Any:
        """The largest of the ``numbers`` of items that are on the stage."""
        items = zip(self._items(), numbers, strict=False)
        return _largest(_has(many) * number for (many, _), number in items)

    def states(self, place: str) -> Iterator[Term]:
        """Weights and what training keeps for each: a term for each state that lies there."""
        layout, items, held = self.layout, self._items(), {}
        for state in self.recipe.states:
            if state.place == place and state.of not in held:
                some = {"layers": items[:-3], "embeddings": items[-3:]}.get(state.of, items)
                at = 2 * (state.of == "adapters")
                dense, expert = (sum(n * item[at + k] for n, item in some) for k in (0, 1))
                shard = -(-dense // (layout.dp * layout.cp))
                if self.model.experts:
                    shard = shard - (-expert // layout.expert_copies)
                held[state.of] = dense, expert, shard
            if state.place == place:
                dense, expert, shard = held[state.of]
                size = state.on_device(dense + expert, shard, layout.zero)
                source = ZERO if np.all(_shards(state, layout)) else self.recipe.source
                formula = _state_formula, state, layout, dense, expert
                yield Term(state.tensor, state.moment, 1, size, formula, source)

    def _gathered(self) -> Iterator[Term]:
        """What ZeRO holds whole for a while: the weights of one item, its gradients before they
        are reduced; all of them, or where the framework goes weight by weight those that are live
        at most, or the largest weight."""
        layout, recipe, held = self.layout, self.recipe, holds(self.recipe.framework)
        gathers, waits = layout.zero == 3, layout.zero >= 2
        if not np.any(waits):
            return
        # ZeRO shards what others hold copies of; what lies elsewhere is brought to one copy too
        brought = recipe.offloads_weights
        apart, beside = layout.dp * layout.cp > 1, layout.expert_copies > 1
        *sizes, head, tied = (
            _has(n) * ((apart | brought) * item.dense + (beside | brought) * item.expert)
            for n, item in self._items()
        )
        sizes.append(head + tied)
        names = ("dense layer", "mixture layer") if self.model.experts else ("layer",)
        largest = self._most(each.largest for each in self.costs.items)
        moments = MOMENTS if recipe.trains else MOMENTS[:1]
        weights = "gathered weights", moments, gathers, recipe.gathered_bytes, held.live_weights
        grads = recipe.gradient_bytes, held.live_gradients
        for tensor, when, there, width, live in (
            weights,
            ("unreduced gradients", (BACKWARD,), waits, *grads),
        ):
            size, formula = (
                _largest(sizes),
                (_largest_formula, (*names, "embedding", "head"), *sizes),
            )
            if live:
                size = (size <= live) * size + (size > live) * _largest((largest, live))
                words = "{2} B x {0:,} parameters, the largest weight or {1:,} live ones"
                formula = words, size, live
            if width and not recipe.holds(tensor):
                here, whole = there & (size > 0), there * (width * size)
                for moment in when:
                    yield Term(tensor, moment, here, whole, (*formula, width), ZERO)

    def _cache(self) -> Iterator[Term]:
        """Keys and values of the tokens that are served; latent ones are whole on every device."""
        model, cached = self.model, self.recipe.cached
        if cached:
            groups, every = -(-model.kv_heads // self.layout.tp), model.kv_cache_elements
            each = every if model.latent else groups * (every // model.kv_heads)
            layers, tokens = self.held.dense + self.held.mixtures, -(-cached // self.layout.cp)
            words = "{} layers x {:,} tokens x {} B x {:,} numbers of a token"
            factors = layers, tokens, self.recipe.compute_bytes, each
            yield _product("key-value cache", ALWAYS, 1, words, factors, CACHE)

    def _training(self) -> Iterator[Term]:
        """Activations and what is computed with them, at each moment of a training step."""
        ends, recipe, width = _has(self.held.heads), self.recipe, self.recipe.compute_bytes
        framework, whole = f"framework {recipe.framework}", self.model.hidden * self.costs.whole
        cut = (self.layout.sequence_parallel > 0) & (self.layout.tp > 1)
        kept = list(self._kept())
        for moment in MOMENTS:
            for term in kept:
                here = ends if moment == LOSS else 1  # only a stage with the head has it
                yield term._replace(moment=moment, there=term.there * here, bytes=term.bytes * here)
        if np.any(ends):
            yield from self._logits(ends)
        yield from self._one_layer(cut, width, whole)
        if holds(recipe.framework).keeps_buffers:  # of gradients that are added up already
            words = "{} B x {:,} parameters, a layer's matrices"
            factors = width, self._most(each.matrices for each in self.costs.items[:-3])
            yield _product("gradient buffers", ALWAYS, 1, words, factors, framework)
            words, there = "{} B x {:,} of the head's input", cut & ends
            whole = there * whole
            yield _product("gathered sequence", LOSS, there, words, (width, whole), framework)
        for work in recipe.working:
            if work.of == "largest weight":
                words = "{} B x {:,} parameters of the largest weight"
                factors = work.bytes, self._most(item.largest for item in self.costs.items)
                yield _product(work.tensor, work.moment, 1, words, factors, recipe.source)
        yield Term("activations", STEP, 1, 0, ("freed by the backward pass",), "")

    def _kept(self) -> Iterator[Term]:
        """What is kept from the forward pass."""
        model, layout, held = self.model, self.layout, self.held
        layers, here = (held.kept_dense, held.kept_mixtures), held.dense + held.mixtures
        each = [layer.kept for layer in self.costs.layers]
        formula = _kept_formula, layout.recompute, layout.schedule, here, *layers, *each
        size = sum(map(mul, layers, each))
        yield Term("activations", FORWARD, 1, size, formula, f"{KORTHIKANTI}, Table 2")
        width, tokens = self.recipe.compute_bytes, model.hidden * self.costs.cut
        factors: tuple[Any, ...]
        if per_token := model.dropout + width * model.embedding_norm:
            words = "dropout mask, 1 B, and norm input of each token, x {} micro-batches"
            there, factors = _has(held.embeddings), (held.kept_embeddings, per_token, tokens)
            yield _product("embedding activations", FORWARD, there, words, factors, ENDS)
        if holds(self.recipe.framework).keeps_sent:
            v, kept = layout.interleave, held.kept_dense + held.kept_mixtures
            senders = (layout.pp > 1) * (v - _has(held.heads))
            n = senders * layout.microbatches - (-senders * (kept * v // np.maximum(here, 1)) // v)
            words = "{} B of each number sent x {}: outputs in flight, and a buffer for each "
            words, source = words + "micro-batch's gradient", f"framework {self.recipe.framework}"
            yield _product("sent activations", FORWARD, _has(n), words, (width, n, tokens), source)
        words = "inputs of the final norm and of the output projection, {} B each, x {} "
        factors = width, held.kept_heads, tokens, model.head_tensors
        words, there = words + "micro-batches", _has(held.heads)
        yield _product("head activations", FORWARD, there, words, factors, ENDS)

    def _logits(self, ends: Any) -> Iterator[Term]:
        """Logits, in single precision or as the product writes them, from the end of the forward
        pass to their gradient, and what else the framework's loss holds."""
        recipe, waiting, elements = self.recipe, self.held.kept_heads, self._elements
        loss, words = holds(recipe.framework).loss_bytes, f"{LOGITS} x {{}} micro-batches"
        each, cast = min(4, loss - 2), "cast back to the precision of the product"
        for moment in MOMENTS:
            factors = each, elements, waiting - ends * (moment == BACKWARD)
            yield _product("logits", moment, ends, words, factors, ENDS)
        rows = [("logit gradients", LOSS, ends, recipe.compute_bytes, cast)]
        if more := loss - 2 - each:
            what = "log-probabilities and their gradient"
            rows.append((what, LOSS, ends, more, f"framework {recipe.framework}"))
        for work in recipe.working:
            if work.of != "largest weight":
                there = ends * ((work.of == "logit") | (self.layout.tp > 1))
                rows.append((work.tensor, work.moment, there, work.bytes, recipe.source))
        for tensor, moment, there, size, source in rows:
            yield _product(tensor, moment, there, LOGITS, (size, elements), source)

    @property
    def _elements(self) -> Any:
        """Logits of a micro-batch on one device."""
        return self.costs.whole * -(-self.model.vocab // self.layout.tp)

    def _one_layer(self, cut: Any, width: int, whole: Any) -> Iterator[Term]:
        """What the layer at work holds beyond what it keeps."""
        tensor, source = "gathered sequence", f"{KORTHIKANTI}, section 4.2.2"
        again = "one layer's input, gathered again, and its gradient, whole"
        if np.any(cut):
            words = "one layer's input, whole"
            yield _product(tensor, FORWARD, cut, words, (width, whole), source)
            yield _product(tensor, BACKWARD, cut, again, (2, width, whole), source)
        there, layer = self._largest_layer()
        words = "of the residual stream and of the two largest tensors of one layer"
        grads = layer.gradients
        yield Term("activation gradients", BACKWARD, there, grads, (words,), "upper bound")
        if np.any(recomputes := self.costs.recomputes):
            there, size = there * recomputes, (layer.whole - layer.kept) * recomputes
            formula = "what {} recomputation dropped of one layer", self.layout.recompute
            yield Term("recomputed activations", BACKWARD, there, size, formula, KORTHIKANTI)

    def _largest_layer(self) -> tuple[Any, LayerBytes]:
        """Whether the stage has a layer, and the most of each kind of bytes that one of it has."""
        there = _has(self.held.dense + self.held.mixtures)
        return there, LayerBytes(*map(self._most, zip(*self.costs.layers, strict=True)))

    def _serving(self) -> Iterator[Term]:
        """One forward pass over the whole sequence, layer by layer."""
        there, layer = self._largest_layer()
        words, size = ("tensors of one layer, all at once",), layer.served
        yield Term("working activations", FORWARD, there, size, words, "upper bound")
        ends, factors = _has(self.held.heads), (self.recipe.compute_bytes, self._elements)
        source = "one forward pass over the whole sequence"
        yield _product("logits", FORWARD, ends, LOGITS, factors, source)


def _shards(state: State, layout: Layout | Numbers) -> Any:
    return state.sharded(layout.zero) & ((layout.dp * layout.cp > 1) | (layout.expert_copies > 1))


def _state_formula(state: State, layout: Layout, dense: int, expert: int) -> str:
    what = "parameters" if state.of == "parameters" else f"parameters of {state.of}"
    each = f"{state.bytes} B" + (f" / {state.per}" if state.per > 1 else "")
    copies = f"dp {layout.dp}" + (f" x cp {layout.cp}" if layout.cp > 1 else "")
    held = f"({copies} / ep {layout.ep})"
    if layout.expert_slices != layout.tp:
        held = f"(tp {layout.tp} x {copies} / (ep {layout.ep} x expert_tp {layout.expert_tp}))"
    sharded = bool(_shards(state, layout))
    formula = f"{each} x {dense:,} {what}" + f" / {copies}" * sharded
    if expert:
        formula += f" + {each} x {expert:,} of experts" + f" / {held}" * sharded
    return formula + f" (ZeRO-{layout.zero})" * sharded


def _largest_formula(names: tuple[str, ...], *numbers: int) -> str:
    *sizes, width = numbers
    name = names[sizes.index(max(sizes))]
    return f"{width} B x {max(sizes):,} parameters of the largest item, {name}"


def _kept_formula(
    recompute: str, schedule: str, here: int, dense: int, mixtures: int, *each: int
) -> str:
    terms = []
    if dense or len(each) == 1:
        terms.append(f"{each[0]:,} B a layer and micro-batch x {dense}")
    if mixtures:
        terms.append(f"{each[1]:,} B a mixture layer and micro-batch x {mixtures}")
    return (
        f"{' + '.join(terms)} layers in flight (recompute {recompute}, {schedule}, {here} "
        f"layers here)"
    )
