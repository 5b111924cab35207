"""Bytes on every pipeline stage: a ledger row per tensor class and moment.

             always                    forward      loss         backward        optimizer step
stage s   weights, gradients,       activations  activations  activations      (activations
          master weights, momentum,              logits       + one layer's     are gone)
          variance                                            gradients
peak = always + the fullest moment
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tiledask.plan import html
from tiledask.plan.fitting.states import (
    StageKind,
    stage_items,
    stage_kinds,
    stage_parameters,
    state_rows,
)
from tiledask.plan.fitting.transient import (
    gathered_rows,
    kept_rows,
    serving_rows,
    working_rows,
)
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import as_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, check_adapters, load_recipe
from tiledask.plan.inputs.run import check_run
from tiledask.plan.ledger import Ledger, Row
from tiledask.plan.units import format_bytes

__all__ = ["MemoryEstimate", "estimate_memory", "stage_parameters", "stage_rows"]


@dataclass(frozen=True, repr=False)
class MemoryEstimate:
    """What a layout needs on each device, and why.

    >>> from tiledask.plan.inputs.load import load_model
    >>> gpt2 = load_model("gpt2")
    >>> estimate_memory(gpt2, Layout(), sequence=1024).ledger.by_tensor(0)["weights"]
    248879616
    """

    model: Model
    layout: Layout
    recipe: Recipe
    sequence: int
    """Tokens per sequence."""
    ledger: Ledger
    """Places are pipeline stages; bytes are those of one device of the stage."""

    @property
    def per_stage(self) -> tuple[int, ...]:
        """Peak bytes on one device of each stage."""
        return tuple(self.ledger.per_place.values())

    @property
    def peak(self) -> int:
        """Bytes on the fullest device."""
        return self.ledger.peak

    @property
    def total(self) -> int:
        """Peak bytes of all devices together."""
        return sum(self.per_stage) * self.layout.dp * self.layout.cp * self.layout.tp

    def __repr__(self) -> str:
        return (
            f"MemoryEstimate({self.model.name}, {self.layout}, {self.recipe.name}, "
            f"sequence {self.sequence}: peak {format_bytes(self.peak)} per device)"
        )

    def _repr_html_(self) -> str:
        place, moment, _ = self.ledger.binding
        tensors = list(dict.fromkeys(row.tensor for row in self.ledger.rows))
        rows = []
        for stage, peak in self.ledger.per_place.items():
            held = self.ledger.by_tensor(stage)
            rows.append(
                (stage, *(format_bytes(held.get(t, 0)) for t in tensors), format_bytes(peak))
            )
        title = (
            f"{self!r}; the fullest is stage {place} at {moment}. Each stage is shown at its own "
            f"fullest moment; GB = 1e9 bytes."
        )
        style = {len(tensors) + 1: "font-weight:bold"}
        return html.table(("stage", *tensors, "peak"), rows, title, first="th", style=style)


def estimate_memory(
    model: Model | str,
    layout: Layout,
    recipe: str | Recipe = "mixed-adam-16",
    sequence: int = 2048,
) -> MemoryEstimate:
    """Bytes per device on every pipeline stage, by tensor class and moment.

    ``model`` may be a name, as `load_model` reads it. States follow the recipe and ZeRO (Rajbhandari et al. 2020, Table 1), activations
    Korthikanti et al. 2022 (Table 2) times the micro-batches in flight. Beside these stand
    the logits, the gradients of one layer's activations during its backward (an upper
    bound: all of them at once), what ZeRO and sequence parallelism gather for one layer, and
    what the recipe works with. A recipe without gradients is one forward pass without a
    key-value cache: the tensors of one layer at a time. Not in here: what the driver, the
    libraries and the allocator take; see ``fits``.

    A tensor parallelism that the heads do not allow, or an expert parallelism that the
    experts do not, is a ConfigError, more stages than layers a PartitionError.

    >>> from tiledask.plan.inputs.load import load_model
    >>> estimate_memory(load_model("gpt-200b"), Layout(tp=8, pp=10, recompute="full"))
    MemoryEstimate(gpt-200b, dp=1 tp=8 pp=10 recompute=full, mixed-adam-16, sequence 2048: peak 42.9 GB per device)
    """  # noqa: E501
    model, recipe = as_model(model), load_recipe(recipe)
    check_run(model, layout, sequence)
    check_adapters(recipe.adapters, model.layer)
    rows = stage_rows(model, layout, recipe, sequence, range(layout.pp))
    return MemoryEstimate(model, layout, recipe, sequence, Ledger.of(rows))


def stage_rows(
    model: Model, layout: Layout, recipe: Recipe, sequence: int, stages: Sequence[int]
) -> list[Row]:
    """The ledger rows of some stages: states.py for what is always there, transient.py for what
    comes and goes. Stages alike are asked once; what is in flight differs on most."""
    kinds = stage_kinds(model, layout, stages, recipe.trains)
    known: dict[StageKind, tuple[list[Row], list[Row]]] = {}
    for kind in dict.fromkeys(kind._replace(alive=()) for kind in kinds):
        items = stage_items(model, layout, recipe, kind)
        always = state_rows(layout, recipe, items) + gathered_rows(layout, recipe, items)
        if recipe.trains:
            work = working_rows(model, layout, recipe, sequence, kind, items)
        else:
            work = serving_rows(model, layout, recipe, sequence, kind)
        known[kind] = always, work
    kept: list[list[Row]] = [[] for _ in kinds]
    if recipe.trains:
        kept = kept_rows(model, layout, recipe, sequence, kinds)
    found = []
    for stage, kind, activations in zip(stages, kinds, kept, strict=True):
        always, work = known[kind._replace(alive=())]
        found += [row.at(stage) for row in (*always, *activations, *work)]
    return found
