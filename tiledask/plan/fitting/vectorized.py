"""Peaks of many layouts at once: layouts as columns of numbers, and the ledger's arithmetic.

layouts x 1  ->  combinations of (tp, cp, ...) that occur, each costed once  ->  layouts x 1

What depends on few fields (a layer's tensors on tp, cp, ...) is costed by the ledger's own
functions, once for each combination that occurs; the rest is arithmetic over columns.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, permutations, starmap
from math import gcd
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.arrays import combinations, numbered
from tiledask.plan.fitting.activations import LayerBytes, layer_costs, tokens_of
from tiledask.plan.fitting.in_flight import Held, InFlight, stages_in_flight
from tiledask.plan.fitting.terms import Costs, Terms, fullest
from tiledask.plan.inputs.items import ItemParameters, item_parameters
from tiledask.plan.inputs.layout import ITEMS, RECOMPUTE, SELECTIVE_OP, Layout, Numbers
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.inputs.run import check_run, chunk_kinds

__all__ = ["KINDS", "ORDERS", "Many", "peaks"]

KINDS = (*RECOMPUTE, SELECTIVE_OP)
"""Kinds of recomputation; a column holds positions in them."""
ORDERS = ("naive", "gpipe", "1f1b")
"""Schedules, likewise."""


Table = tuple[np.ndarray, np.ndarray]
"""(A column for each combination that occurs, which of these each layout has.)"""


def _table(columns: dict[str, np.ndarray], function: Callable[..., Iterable[int]]) -> Table:
    """``function`` of every combination of ``columns`` that occurs."""
    first, which = combinations(list(columns.values()))
    rows = zip(*(column[first].tolist() for column in columns.values()), strict=True)
    results = [function(**dict(zip(columns, row, strict=True))) for row in rows]
    return np.array(list(zip(*results, strict=True)), np.int64), which


def _tuples(kind: Any, rows: Iterable[np.ndarray]) -> tuple[Any, ...]:
    """Named tuples of so many rows each."""
    return tuple(starmap(kind, zip(*[iter(rows)] * len(kind._fields), strict=True)))


@dataclass(frozen=True, eq=False)
class Many:
    """Layouts as columns."""

    model: Model
    recipe: Recipe
    sequence: int
    n: dict[str, np.ndarray]

    @cached_property
    def layers(self) -> tuple[np.ndarray, np.ndarray, list[tuple[int, ...]]]:
        """A table of what the plain functions of the ledger say of a layer, and the ratios of the
        bytes kept of one of each kind that occur; its first row is which of these."""
        kept: dict[tuple[int, ...], int] = {}

        def layer(recompute: int, **fields: int) -> tuple[int, ...]:
            layout = Layout(
                recompute=KINDS[recompute], **{k: KIND[k](v) for k, v in fields.items()}
            )
            layers = layer_costs(self.model, layout, self.sequence, self.recipe)
            common = gcd(*(layer.kept for layer in layers)) or 1
            at = kept.setdefault(tuple(layer.kept // common for layer in layers), len(kept))
            return at, *tokens_of(layout, self.sequence), *chain(*layers)

        return *_table({name: self.n[name] for name in ("recompute", *KIND)}, layer), list(kept)

    @cached_property
    def items(self) -> Table:
        """The parameters of each item."""

        def items(tp: int, ep: int, slices: int) -> tuple[int, ...]:
            return tuple(chain(*item_parameters(self.model, self.recipe, tp, ep, slices)))

        slices = Numbers(**self.n).expert_slices
        return _table({"tp": self.n["tp"], "ep": self.n["ep"], "slices": slices}, items)

    def costs(self, rows: np.ndarray) -> Costs:
        """The Costs of these layouts."""
        (table, which, _), (items, of) = self.layers, self.items
        which, of, sequences = which[rows], of[rows], self.n["microbatch"][rows]
        whole, cut, *kept = (sequences * column[which] for column in table[1:])
        held = _tuples(ItemParameters, (column[of] for column in items))
        layers = _tuples(LayerBytes, kept)
        return Costs(whole, cut, layers, held, self.n["recompute"][rows] > 0)

    @cached_property
    def stages(self) -> int:
        """How many of the first stages may be the fullest: those that may hold fewer mixtures
        than a later one, and the next, where the embedding stands for a layer of the first."""
        dense = self.model.dense_layers if self.model.experts else ()
        more = int(self.n["items"].any())
        if not dense:
            return 1 + more
        chunks = self.n["pp"] * self.n["interleave"]
        layers = np.maximum(1, self.model.layers // chunks)
        covering = -(-(max(dense) + 1) // layers) + 1
        return int(np.minimum(covering + more, self.n["pp"]).max())

    def in_flight(self) -> Table:
        """What is in flight on the stages that may be the fullest: (stage x number x combination
        of a pipeline's fields, which of these each layout has). More micro-batches than fill the
        pipeline change nothing, but under GPipe everything in proportion."""
        n, gpipe = self.n, self.n["schedule"] == ORDERS.index("gpipe")
        enough = np.where(n["interleave"] > 1, 4 * n["pp"], np.where(gpipe, 1, n["pp"]))
        columns = {name: n[name] for name in ("pp", "interleave", "schedule", "items")}
        columns["microbatches"] = np.minimum(n["microbatches"], enough)
        (ratio, *_), layer, pairs = self.layers
        # states of one chunk, or of layers of one kind, are told apart without costs
        columns["cost"] = ratio[layer] * (n["interleave"] > 1) * bool(self.model.experts)

        def in_flight(cost: int, **pipe: int) -> Iterable[int]:
            held = _held(self.model, self.stages, *pipe.values())
            return chain(*(each.fullest(pairs[cost]) for each in held))

        table, which = _table(columns, in_flight)
        return table.reshape(1 + self.stages, len(InFlight._fields), -1), which

    def peak(self) -> np.ndarray:
        """Bytes of every layout on its fullest stage at the fullest moment.

        Of equal layers cut evenly, the first stage holds the most of everything but the logits,
        which are on the last.
        """
        held, which = self.in_flight()
        left_out = _no_fuller(held)
        held = np.take_along_axis(held, left_out.argsort(0, kind="stable")[:, None], 0)
        stages = (~left_out).sum(0)[which]
        order = (-stages).argsort(kind="stable")  # so that the layouts of a stage are a slice
        which, costs = which[order], self.costs(order)
        n = {name: column[order] for name, column in self.n.items()}
        times = np.where(n["schedule"] == ORDERS.index("gpipe"), n["microbatches"], 1)
        most = np.zeros(len(order), np.int64)
        for stage, numbers in enumerate(held[: stages.max()]):
            there = slice(int((stages > stage).sum()))
            here = [column[which[there]] for column in numbers]
            here[KEPT] = (times[there] * column for column in here[KEPT])
            layout = Numbers(**{name: column[there] for name, column in n.items()})
            terms = Terms(self.model, self.recipe, layout, costs.of(there), InFlight(*here))
            np.maximum(most[there], fullest(terms), out=most[there])
        peak = np.empty_like(most)
        peak[order] = most
        return peak


KIND: dict[str, Callable[[int], Any]] = {"tp": int, "cp": int} | dict.fromkeys(
    ("sequence_parallel", "flash_attention"), bool
)
"""Fields, beside recompute, that a layer's bytes depend on, and what they are."""
KEPT = slice(InFlight._fields.index("kept_dense"), None)
"""The numbers of an InFlight that are micro-batches."""


def _no_fuller(held: np.ndarray) -> np.ndarray:
    """Which stages (stage x combination) hold no more of anything than another of as many layers
    and heads, on which hangs what is sent on; of equal ones all but the first."""
    layers, heads = held[:, 0] + held[:, 1], held[:, 3]
    found = np.zeros(layers.shape, np.bool_)
    for stage, other in permutations(range(len(held)), 2):
        alike = (layers[stage] == layers[other]) & (heads[stage] == heads[other])
        within = alike & (held[stage] <= held[other]).all(axis=0)
        found[stage] |= within & ((other < stage) | (held[stage] < held[other]).any(axis=0))
    return found


@lru_cache(maxsize=2**12)
def _held(
    model: Model, stages: int, pp: int, interleave: int, schedule: int, items: int, m: int
) -> list[Held]:
    """What the last stage of a pipeline holds, and each of the first ``stages``. Kept: searches of
    one model on several clusters ask for the same."""
    cut, order = ITEMS if items else None, ORDERS[schedule]
    layout = Layout(pp=pp, interleave=interleave, microbatches=m, schedule=order, partition=cut)
    places = [pp - 1, *(min(stage, pp - 1) for stage in range(stages))]
    different = list(dict.fromkeys(places))
    found = stages_in_flight(layout, chunk_kinds(model, layout), different)
    return [found[different.index(place)] for place in places]


def peaks(
    model: Model,
    recipe: str | Recipe = "mixed-adam-16",
    sequence: int | None = None,
    **fields: Any,
) -> np.ndarray:
    """Peak bytes on the fullest device of every layout: int64, of the shape that the fields
    have together. Equal to ``estimate_memory(...).peak``, to the byte.

    ``fields`` are those of Numbers, each one value or an array, of layouts that Layout and the
    model allow; layers are cut evenly, with embedding and head as one each where ``items``, and
    the schedules are "naive", "gpipe" and "1f1b", interleaved if there are several chunks.

    >>> from tiledask.plan.inputs.load import load_model
    >>> peaks(load_model("gpt-200b"), tp=8, pp=10, dp=[1, 2, 4], zero=1, recompute="full")
    array([42897432576, 27320503296, 19532038656])
    """
    given = vars(Numbers(**fields))
    codes = {"recompute": KINDS, "schedule": ORDERS}
    given = given | {name: _codes(name, given[name], words) for name, words in codes.items()}
    columns = np.broadcast_arrays(*(np.asarray(v).astype(np.int64) for v in given.values()))
    flat = {name: column.ravel() for name, column in zip(given, columns, strict=True)}
    if not flat["dp"].size:
        return np.zeros(columns[0].shape, np.int64)
    sequence = check_run(model, Layout(), sequence)
    most = Many(model, load_recipe(recipe), sequence, flat).peak()
    # 1e9 bytes of activations a sequence would leave 64 bits
    sequences = flat["microbatch"].astype(float) * flat["microbatches"]
    if (most < 0).any() or (sequences > 2**33).any():
        raise ConfigError("these sizes are too large to count in 64 bits; use Layout one by one")
    return most.reshape(columns[0].shape)


def _codes(name: str, words: Any, allowed: tuple[str, ...]) -> np.ndarray:
    codes = numbered(given := np.asarray(words), allowed)
    if (codes < 0).any():
        raise ConfigError(f"{name} must be one of {allowed}, got {given[codes < 0].tolist()[0]!r}")
    return codes
