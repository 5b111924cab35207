"""Published numbers by their id, and published runs in the planner's words (runs.json).

a row  ->  PublishedRun: model, layout, cluster, recipe, sequence, framework  ->  bytes, seconds

What a source does not say is our reading of it: flash attention and sequence parallelism wherever
programs of today have tensor parallelism; of Megatron-Core's table the fastest micro-batch and
chunks that fit, of AutoModel's runs the least recomputation that fits.
"""

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from tiledask.plan.data import shipped_json
from tiledask.plan.fitting.fit import fits
from tiledask.plan.fitting.memory import MemoryEstimate, estimate_memory
from tiledask.plan.inputs.hardware import ClusterSpec, load_cluster
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, load_recipe, lora
from tiledask.plan.timing.step import StepEstimate, estimate_step

__all__ = ["PublishedRun", "model_of", "published", "published_runs"]


@cache
def published(name: str) -> dict[str, dict[str, Any]]:
    """The cases of data/published/NAME.json by their id."""
    return {case["id"]: case for case in shipped_json("published", f"{name}.json")}


class PublishedRun(NamedTuple):
    """A run, and a number that was measured of it."""

    model: Model
    layout: Layout
    cluster: str | ClusterSpec
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
        return fits(*self[:5], framework=self.framework).verdict


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
            Layout(**_tuples(row["layout"])),
            _cluster(row["cluster"]),
            _recipe(row["recipe"]),
            row["sequence"],
            row.get("framework"),
            row["id"],
            row["quantity"],
            row["measured"],
            given.get("unit", ""),
        )
        found.setdefault(row["group"], []).append(run)
    return found


def model_of(given: str | dict[str, Any]) -> Model:
    """By name; one cut down to some layers; or by its fields."""
    if isinstance(given, str):
        return load_model(given)
    if "like" in given:
        return replace(load_model(given["like"]), layers=given["layers"])
    return Model(**_tuples(given))


def _cluster(given: str | dict[str, Any]) -> str | ClusterSpec:
    """By name, or with other adapters between its nodes."""
    if isinstance(given, str):
        return given
    cluster = load_cluster(given["like"])
    link = replace(cluster.between_nodes, bytes_per_second=given["between_nodes"])
    return replace(cluster, between_nodes=link)


def _recipe(given: str | dict[str, Any]) -> Recipe:
    """By name, with adapters, gradients or operands of other bytes."""
    if isinstance(given, str):
        return load_recipe(given)
    recipe = load_recipe(given["like"])
    if "lora" in given:
        recipe = lora(given["lora"], tuple(given["beside"]), recipe)
    if width := given.get("gradient_bytes"):
        states = (replace(s, bytes=width) if s.tensor == "gradients" else s for s in recipe.states)
        recipe = replace(recipe, states=tuple(states))
    return replace(recipe, product_bytes=given.get("product_bytes", recipe.product_bytes))


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
