"""Layouts to choose: the planner judges, and searches for the best."""

from functools import cache, partial
from itertools import islice
from typing import Any

from tiledask.errors import RuleError
from tiledask.lab import plots
from tiledask.lab.exercises.exercise import exercise, instance
from tiledask.lab.judging import Target
from tiledask.lab.plots.primitives import Figure
from tiledask.plan.choosing.search import Space, search
from tiledask.plan.fitting.fit import Fit, fits
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.timing.step import StepEstimate, estimate_step
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["fastest_within", "fewest_devices"]

GB = 10**9
SEARCHED = "best of the search"
SEQUENCE, RECIPE = 2048, "mixed-adam-16"


def _fitting(fit: Fit) -> str:
    """Where most memory is needed, and for what; RuleError unless it fits."""
    if fit.verdict != "fits":
        raise RuleError(f'the verdict is "{fit.verdict}": {fit.reason}')
    place, moment, tensor = fit.memory.ledger.binding
    held = format_bytes(fit.memory.ledger.by_tensor(place)[tensor])
    return f"stage {place + 1} is the fullest, at {moment}, and its {tensor} take most, {held}"


def _fit(
    layout: Layout, model: Model, cluster: ClusterSpec, batch: int, recipe: str = RECIPE
) -> Fit:
    """Whether a layout of ``batch`` sequences a step fits."""
    if layout.cp > 1:
        raise RuleError(f"sequences stay whole here: cp is 1, got {layout.cp}")
    if layout.sequences != batch:
        raise RuleError(
            f"dp {layout.dp} x microbatch {layout.microbatch} x microbatches {layout.microbatches} "
            f"= {layout.sequences} sequences a step, the task has {batch}; dp x microbatches of "
            f"{batch} with microbatch 1 will do"
        )
    return fits(model, layout, cluster, recipe, SEQUENCE)


@cache
def _found(
    model: Model, cluster: ClusterSpec, batch: int, recipe: str = RECIPE, devices: int | None = None
) -> Any:
    """Every layout that is tried, on so many devices, the fastest first."""
    space = Space(pp=tuple(range(1, min(model.layers, cluster.devices) + 1)))
    how: dict[str, Any] = {"sequence": SEQUENCE, "recipe": recipe, "space": space}
    how |= {"devices": (devices,)} if devices else {}
    return search(model, cluster, batch, **how)


def _on_devices(
    layout: Layout | None, model: Model, cluster: ClusterSpec, batch: int, recipe: str
) -> Figure:
    layout = layout or Layout(tp=cluster.devices_per_node, microbatches=batch)
    fit = _fit(layout, model, cluster, batch, recipe)
    title = f"{layout.devices} devices, without overhead"
    return plots.memory_bars(fit.memory.ledger, fit.capacity, place="stage", title=title)


@exercise("fewest-devices", instance(Layout), _on_devices)
def fewest_devices(
    layout: Layout, model: Model, cluster: ClusterSpec, batch: int, recipe: str = RECIPE
) -> list[Target]:
    """Find a Layout with which a model trains on the fewest devices of a cluster."""
    _fitting(_fit(layout, model, cluster, batch, recipe))
    found = partial(_found, model, cluster, batch, recipe)
    each = range(1, cluster.devices + 1)
    best = next(n for n in each if found(n).counts["fits"])
    return [Target("devices", best, layout.devices, best, SEARCHED, least=True)]


@cache
def _fastest(model: Model, cluster: ClusterSpec, batch: int, room: int) -> StepEstimate:
    """The fastest step with ``room`` bytes or fewer: formulas rank the plans, and may err between
    neighbours, so that the first twelve are simulated."""
    found = _found(model, cluster, batch)
    inside = (found[n] for n in range(found.counts["fits"]))
    first = islice((plan for plan in inside if plan.peak <= room), 12)
    fastest: StepEstimate = min((plan.step for plan in first), key=lambda step: step.total)
    return fastest


def _steps(
    layout: Layout | None, model: Model, cluster: ClusterSpec, batch: int, room: int, within: float
) -> Figure | None:
    if layout is None:
        return None
    _fit(layout, model, cluster, batch)
    mine = estimate_step(model, layout, cluster, RECIPE, SEQUENCE)
    best = _fastest(model, cluster, batch, room)
    return plots.step_breakdown({"the best of the search": best, "yours": mine})


@exercise("fastest-within", instance(Layout), _steps)
def fastest_within(
    layout: Layout, model: Model, cluster: ClusterSpec, batch: int, room: int, within: float = 0.05
) -> list[Target]:
    """Find a Layout that takes so many bytes or fewer on the fullest device, without the overhead
    of a run, and hardly longer than the fastest such layout."""
    fit = _fit(layout, model, cluster, batch)
    fullest, best = _fitting(fit), _fastest(model, cluster, batch, room)
    got = estimate_step(model, layout, cluster, RECIPE, SEQUENCE)
    parts = ("compute", "recompute", "tp", "cp", "ep", "pp", "bubble", "dp", "optimizer")
    part = max(parts, key=lambda part: getattr(got, part) - getattr(best, part))
    where = f"most is lost to {part}, {format_seconds(getattr(got, part))}"
    most, mine, least = (round(s, 2) for s in ((1 + within) * best.total, got.total, best.total))
    peak = round(fit.memory.peak / GB, 2)
    return [
        Target("GB on the fullest device", room / GB, peak, why=fullest),
        Target("seconds a step", most, mine, least, SEARCHED, why=where),
    ]
