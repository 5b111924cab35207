"""Bytes on every pipeline stage: a ledger row per tensor class and moment.

             always                    forward      loss         backward        optimizer step
stage s   weights, gradients,       activations  activations  activations      (activations
          master weights, momentum,              logits       + one layer's     are gone)
          variance                                            gradients
peak = always + the fullest moment
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, zip_longest
from typing import Any

import numpy as np

from tiledask.plan.fitting.activations import layer_costs, stages_in_flight
from tiledask.plan.fitting.terms import Terms, fullest, rows
from tiledask.plan.inputs.framework_memory import memory_of
from tiledask.plan.inputs.layout import Layout, expert_slices
from tiledask.plan.inputs.load import load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.inputs.run import Item, caches, check_held, check_run, item_parameters, tokens_of
from tiledask.plan.ledger import Ledger
from tiledask.plan.tables import Part, Printable, Table
from tiledask.plan.units import format_bytes

__all__ = ["MemoryEstimate", "estimate_memory"]


@dataclass(frozen=True, repr=False)
class MemoryEstimate(Printable):
    """What a layout needs on each device, and why.

    >>> estimate_memory("gpt2", Layout(), sequence=1024).ledger.by_tensor(0)["weights"]
    248879616
    """

    model: Model
    layout: Layout
    recipe: Recipe
    sequence: int  # Tokens of one
    per_stage: tuple[int, ...]  # Peak bytes on one device of each stage
    terms: Terms = field(compare=False)  # Those of all stages

    @cached_property
    def ledger(self) -> Ledger:
        """Of one device of each stage."""
        return Ledger.of(rows(self.terms, self.layout.pp))

    @cached_property
    def offloaded(self) -> dict[str, Ledger]:
        """Place beside the device, "cpu" or "nvme" -> what a device of each stage keeps there."""
        states = {place: self.terms.states(place) for place in self.recipe.places}
        return {place: Ledger.of(rows(each, self.layout.pp)) for place, each in states.items()}

    @property
    def peak(self) -> int:
        """Bytes on the fullest device."""
        return max(self.per_stage)

    def to_dict(self) -> dict[str, Any]:
        """What was asked, the peak of each stage and the rows, as plain values for JSON."""
        return {
            "model": {"name": self.model.name, "source": self.model.source},
            "layout": vars(self.layout),
            "recipe": self.recipe.name,
            "framework": self.recipe.framework,
            "sequence": self.sequence,
            "cached": self.recipe.cached,
            "per_stage": list(self.per_stage),
            "offloaded": {place: each.peak for place, each in self.offloaded.items()},
            "rows": self.ledger.to_dict()["rows"],
        }

    def __repr__(self) -> str:
        run = f"{self.model.name}, {self.layout}, {self.recipe.name}, sequence {self.sequence}"
        return f"MemoryEstimate({run}: peak {format_bytes(self.peak)} per device)"

    def printed(self) -> Iterator[Part]:
        """What is estimated; the ledger, a row per run of alike stages, of many the ends and the
        fullest, and a column per group of tensor classes; what is kept beside the devices."""
        yield repr(self)
        ledger = self.ledger
        groups = {s.tensor: "optimizer" if s.zero == 1 else s.tensor for s in self.recipe.states}
        groups["key-value cache"] = "KV cache"
        held: dict[int, Counter[str]] = {stage: Counter() for stage in ledger.places}
        for stage, sums in held.items():
            for tensor, size in ledger.by_tensor(stage).items():
                other = "activations" if re.search("activation|logit", tensor) else "buffers"
                sums[groups.get(tensor, other)] += size
        names = list(dict.fromkeys(name for sums in held.values() for name in +sums))
        runs, peaks = [[*stages] for _, stages in groupby(held, held.__getitem__)], ledger.per_place
        if len(runs) > 12:  # the first, the fullest and the last alone
            fullest = max(runs, key=lambda run: peaks[run[0]])
            runs = [run for run in runs if run in (runs[0], fullest, runs[-1])]
        found, after = list[tuple[str, ...]](), 0
        for first, last in ((run[0], run[-1]) for run in runs):
            if first > after:
                found.append((f"{after} to {first - 1}", *["..."] * (len(names) + 2)))
            after, moments = last + 1, ledger.moments[first]
            sizes = [held[first][name] / 1e9 for name in names]
            words = [f"{size:,.4g}" if size else "" for size in (*sizes, peaks[first] / 1e9)]
            span = f"{first} to {last}" if last > first else f"{first}"
            found.append((span, max(moments, key=moments.__getitem__), *words))
        title = "GB (1e9 bytes) on a device of each stage at its fullest moment"
        yield Table(("stage", "moment", *names, "in all"), found, title, left=(0, 1))
        for place, each in self.offloaded.items():
            where = "the host's memory" if place == "cpu" else "the disks"
            yield f"each device keeps {format_bytes(each.peak)} in {where}"


def estimate_memory(
    model: Model | str,
    layout: Layout,
    recipe: str | Recipe = "mixed-adam-16",
    sequence: int | None = None,
    framework: str | None = None,
    cached: int = 0,
) -> MemoryEstimate:
    """Bytes per device on every pipeline stage, by tensor class and moment.

    ``model`` may be a name, as `load_model` reads it. States follow the recipe and ZeRO
    (Rajbhandari et al. 2020, Table 1), activations Korthikanti et al. 2022 (Table 2) times the
    micro-batches in flight. Beside these stand the logits, the gradients of one layer's
    activations during its backward (an upper bound: all of them at once), what ZeRO and sequence
    parallelism gather for one layer, and what the recipe works with. A recipe without gradients is
    one forward pass, the tensors of one layer at a time, beside the keys and values of ``cached``
    tokens: those of all sequences that a copy serves, in all layers, as if none forgot what has
    left a sliding window. Not in here:
    what the driver, the libraries and the allocator take; see ``fits``. ``framework``, a name in
    data/calibration/framework, says what the loss and the inputs of FP8 products and adapters hold
    (default: the one that the recipe is written after, else nobody's own).

    A tensor parallelism that the heads do not allow, or an expert parallelism that the
    experts do not, is a ConfigError, more stages than layers a PartitionError.

    >>> from tiledask.plan.inputs.load import load_model
    >>> estimate_memory(load_model("gpt-200b"), Layout(tp=8, pp=10, recompute="full"))
    MemoryEstimate(gpt-200b, dp=1 tp=8 pp=10 recompute=full, mixed-adam-16, sequence 2048: peak 42.9 GB per device)
    """  # noqa: E501
    model, recipe = load_model(model), load_recipe(recipe)
    if framework is not None:
        memory_of(framework)
        recipe = replace(recipe, framework=framework, usual=False)
    recipe = caches(recipe, cached)
    sequence = check_run(model, layout, sequence)
    check_held(recipe, model, layout)
    costs = layer_costs(model, layout, sequence, recipe)
    parameters = item_parameters(model, recipe, layout.tp, layout.ep, expert_slices(layout))
    pairs = zip_longest(parameters, costs, fillvalue=())
    items = tuple(Item(*item, *cost) for item, cost in pairs)
    kept = [cost[0] for cost in costs] if recipe.trains else []
    stages = stages_in_flight(model, layout, range(layout.pp), kept)
    # a column for each number, in Python's integers; of one stage the numbers themselves
    held = tuple(stages[0] if layout.pp == 1 else np.array(stages, object).T)
    tokens, again = tokens_of(layout, sequence), layout.recompute != "none"
    run = model, recipe, layout, *tokens, items, again
    terms = Terms(*run, held[: len(items)], held[len(items) :])
    peaks = tuple(np.atleast_1d(fullest(terms)).tolist())
    return MemoryEstimate(model, layout, recipe, sequence, peaks, terms)
