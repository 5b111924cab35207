"""Published runs in the planner's words (data/published/runs.json).

a row  ->  PublishedRun: model, layout, cluster, recipe, sequence, framework  ->  bytes, seconds

What a source does not say is our reading of it: flash attention and sequence parallelism wherever
programs of today have tensor parallelism; of Megatron-Core's table the fastest micro-batch and
chunks that fit, of AutoModel's runs the least recomputation that fits.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import tiledask as td
from tiledask.plan.data import shipped_json
from tiledask.plan.fitting.memory import MemoryEstimate, estimate_memory
from tiledask.plan.inputs.hardware import ClusterSpec, load_cluster
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.timing.step import StepEstimate, estimate_step


class PublishedRun(NamedTuple):
    """A run, and a number that was measured of it."""

    model: td.Model
    layout: td.Layout
    cluster: ClusterSpec
    recipe: Recipe
    sequence: int
    framework: str | None
    case: str
    """Which run of its source."""
    quantity: str
    """"step", "step, full", "layer, forward and backward", "peak", "reserved" or "fits"."""
    measured: float
    unit: str

    @property
    def key(self) -> str:
        """By which a calibration names it: "kor-t5-22B:full"."""
        return f"{self.case}:{self.quantity[6:]}" if "step, " in self.quantity else self.case

    @property
    def is_timed(self) -> bool:
        """Whether seconds were measured, of a step or of one layer."""
        return self.unit in ("s", "ms")

    @property
    def is_layer(self) -> bool:
        """Whether one layer was measured, not a step."""
        return self.quantity.startswith("layer")

    def step(self) -> StepEstimate:
        """The time that a step is estimated to take."""
        return estimate_step(*self[:5], framework=self.framework)

    def memory(self) -> MemoryEstimate:
        """The ledger of its bytes."""
        return estimate_memory(*self[:2], self.recipe, self.sequence, self.framework)

    @property
    def verdict(self) -> str:
        """Whether it fits."""
        return td.fits(*self[:5], framework=self.framework).verdict


@cache
def published_runs() -> dict[str, list[PublishedRun]]:
    """The runs by their group (a key of groups.json), in the order of the file; what a row does not
    say of its run is as in the first row of its case."""
    found: dict[str, list[PublishedRun]] = {}
    firsts: dict[str, dict[str, Any]] = {}
    for given in shipped_json("published", "runs.json"):
        row = firsts.setdefault(given["id"], given) | given
        run = PublishedRun(
            model_of(row["model"]),
            _with(td.Layout(), row["layout"]),
            _like(load_cluster, row["cluster"]),
            _like(load_recipe, row["recipe"]),
            row["sequence"],
            row.get("framework"),
            row["id"],
            row["quantity"],
            row["measured"],
            given.get("unit", ""),
        )
        found.setdefault(row["group"], []).append(run)
    return found


def model_of(given: str | dict[str, Any]) -> td.Model:
    """By name, one like it, or by all its fields."""
    if isinstance(given, dict) and "like" not in given:
        return td.Model(**{name: _with(None, own) for name, own in given.items()})
    model: td.Model = _like(td.load_model, given)
    return model


def _like(load: Callable[[str], Any], given: str | dict[str, Any]) -> Any:
    """By name; or like the one of a name, with some fields of its own."""
    if isinstance(given, str):
        return load(given)
    return _with(load(given["like"]), {name: given[name] for name in given if name != "like"})


def _with(base: Any, given: Any) -> Any:
    """``given`` in the place of ``base``: a dict names some fields, of states by their tensor."""
    if not isinstance(given, dict):
        return tuple(given) if isinstance(given, list) else given
    if isinstance(base, tuple):
        return tuple(_with(each, given.get(each.tensor, {})) for each in base)
    return replace(base, **{name: _with(getattr(base, name), own) for name, own in given.items()})
