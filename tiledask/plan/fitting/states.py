"""Weights and what training keeps for each: counted per stage, sharded by ZeRO.

one stage's devices      dp x cp copies                dense weights: shards over dp x cp
                         = ep expert groups            experts: 1/ep of them on each device,
                           x dp x cp / ep copies       their shards over dp x cp / ep
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tiledask.plan.fitting.in_flight import alive
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model, Weight
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.ledger import Row

__all__ = [
    "Item",
    "Share",
    "StageKind",
    "stage_items",
    "stage_kinds",
    "stage_parameters",
    "state_rows",
]

ZERO = "Rajbhandari et al. 2020, arXiv:1910.02054, Table 1"


@dataclass(frozen=True)
class Share:
    """Parameters on one device."""

    dense: int = 0
    """Those that every data-parallel device holds a copy of."""
    expert: int = 0
    """Those of experts, which are sharded over expert parallelism."""

    @property
    def total(self) -> int:
        return self.dense + self.expert

    def __add__(self, other: "Share") -> "Share":
        return Share(self.dense + other.dense, self.expert + other.expert)

    def __mul__(self, n: int) -> "Share":
        return Share(n * self.dense, n * self.expert)


@dataclass(frozen=True)
class Item:
    """An embedding, a kind of layer or a head on a stage, and how many of them."""

    name: str
    n: int
    each: Share
    adapters: Share
    largest: int
    """Parameters of its largest weight, of a single expert."""


@lru_cache(maxsize=16384)
def share(weights: tuple[Weight, ...], tp: int, ep: int) -> Share:
    """Parameters of ``weights`` on the fullest device."""
    dense = sum(w.count(tp) for w in weights if w.copies == 1)
    experts = sum(w.count(tp) // w.copies * -(-w.copies // ep) for w in weights if w.copies > 1)
    return Share(dense, experts)


@lru_cache(maxsize=16384)
def item_numbers(
    weights: tuple[Weight, ...], recipe: Recipe, tp: int, ep: int
) -> tuple[Share, Share, int]:
    """(parameters, those of adapters, those of the largest weight) on one device."""
    adapters = Share()
    if recipe.adapters:
        for w in weights:
            n = recipe.adapters.parameters((w,), tp)
            kept = Share(expert=n // w.copies * -(-w.copies // ep)) if w.copies > 1 else Share(n)
            adapters += kept
    largest = max((w.count(tp) // w.copies for w in weights), default=0)
    return share(weights, tp, ep), adapters, largest


class StageKind(NamedTuple):
    """What the bytes of a stage follow from: stages of a kind hold the same."""

    chunks: tuple[tuple[int, int], ...]
    """(dense layers, mixtures) of each chunk that it holds, both copies' where there are two."""
    ends: tuple[tuple[bool, bool], ...]
    """Of each, whether it is the first of the model, and the last."""
    layers: tuple[int, int]
    """Dense layers and mixtures, all chunks together."""
    embeddings: int
    heads: int
    alive: tuple[tuple[int, ...], ...] = ()
    """Its fullest states: micro-batches in flight in each chunk; none if nothing is trained."""

    @property
    def present(self) -> tuple[bool, ...]:
        """Of which kinds there are layers: False dense ones, True mixtures."""
        return tuple(m for m, n in zip((False, True), self.layers, strict=True) if n)


def stage_kinds(
    model: Model, layout: Layout, stages: Iterable[int], trains: bool = True
) -> list[StageKind]:
    """The kinds of some pipeline stages."""
    stages, kinds, last = list(stages), chunk_kinds(model, layout), layout.last_chunk
    held = [layout.stage_chunks(stage) for stage in stages]
    states = [alive(layout, stage) if trains else () for stage in stages]
    found = []
    for numbers, fullest in zip(held, states, strict=True):
        chunks = tuple(kinds[c] for c in numbers)
        ends = tuple((c == 0, c == last) for c in numbers)
        layers = sum(dense for dense, _ in chunks), sum(mixtures for _, mixtures in chunks)
        found.append(
            StageKind(chunks, ends, layers, numbers.count(0), numbers.count(last), fullest)
        )
    return found


def stage_items(model: Model, layout: Layout, recipe: Recipe, kind: StageKind) -> tuple[Item, ...]:
    """What lies on one device of a stage. The head of a stage without the embedding holds
    the embedding matrix once more if it is tied."""
    dense, mixtures = kind.layers
    tied = () if kind.embeddings else model.tied_copy
    weights = {name: weights for name, _, weights in model.layer_kinds}
    found = [
        ("layer", 0 if model.experts else dense, weights.get("layer", ())),
        ("dense layer", dense if model.experts else 0, weights.get("dense layer", ())),
        ("mixture layer", mixtures, weights.get("mixture layer", ())),
        ("embedding", kind.embeddings, model.embedding),
        ("head", kind.heads, model.head + tied),
    ]
    return tuple(
        Item(name, n, *item_numbers(of, recipe, layout.tp, layout.ep)) for name, n, of in found if n
    )


def chunk_kinds(model: Model, layout: Layout) -> tuple[tuple[int, int], ...]:
    """(dense layers, mixtures) of each chunk, in model order."""
    return _chunk_kinds(layout.chunk_layers(model.layers), model.dense_layers, model.experts > 0)


@lru_cache(maxsize=4096)
def _chunk_kinds(
    sizes: tuple[int, ...], dense_layers: tuple[int, ...], experts: bool
) -> tuple[tuple[int, int], ...]:
    if not experts:
        return tuple((n, 0) for n in sizes)
    kinds, start = [], 0
    for n in sizes:
        dense = sum(start <= layer < start + n for layer in dense_layers)
        kinds.append((dense, n - dense))
        start += n
    return tuple(kinds)


def stage_parameters(model: Model, layout: Layout, stage: int) -> int:
    """Parameters on one device of ``stage``, before any sharding over data parallelism.

    The last of several stages holds the embedding matrix once more if it is tied.
    """
    (kind,) = stage_kinds(model, layout, [stage], trains=False)
    return sum(item.n * item.each.total for item in stage_items(model, layout, _PLAIN, kind))


_PLAIN = Recipe("no states", "", 2, (), "")


def state_rows(layout: Layout, recipe: Recipe, items: tuple[Item, ...]) -> list[Row]:
    """A row for each state of the recipe, of place 0."""
    copies, rows = layout.dp * layout.cp, []
    shares = {
        "parameters": sum((item.each * item.n for item in items), Share()),
        "adapters": sum((item.adapters * item.n for item in items), Share()),
    }
    for state in recipe.states:
        held = shares[state.of]
        sharded = state.sharded(layout.zero) and copies > 1
        size = state.on_device(held.dense, layout.zero, copies)
        size += state.on_device(held.expert, layout.zero, copies // layout.ep)
        what = "parameters" if state.of == "parameters" else "parameters of adapters"
        over = f" / {_over(layout)}" if sharded else ""
        formula = f"{state.bytes} B x {held.dense:,} {what}{over}"
        if held.expert:
            over = f" / ({_over(layout)} / ep {layout.ep})" if sharded else ""
            formula += f" + {state.bytes} B x {held.expert:,} of experts{over}"
        if sharded:
            formula += f" (ZeRO-{layout.zero})"
        source = ZERO if sharded else recipe.source
        rows.append(Row(0, state.tensor, state.moment, size, formula, source))
    return rows


def _over(layout: Layout) -> str:
    return f"dp {layout.dp}" + (f" x cp {layout.cp}" if layout.cp > 1 else "")
