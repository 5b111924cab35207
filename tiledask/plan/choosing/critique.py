"""What is wrong with a plan, and what would be better: every line with its numbers.

a layout  ->  fits? balanced? how much is waiting, and for what?      each Judged
          ->  one change at a time, costed: memory and seconds   ->   the advice, best first
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from tiledask.plan.fitting.fit import Fit, fits
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Layout, Numbers
from tiledask.plan.inputs.load import as_cluster, as_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.inputs.run import check_run, check_trains, more_tp
from tiledask.plan.judged import Judged
from tiledask.plan.tables import Part, Printable
from tiledask.plan.timing.calibration import Calibration
from tiledask.plan.timing.step import CLOSED_FORMS, StepEstimate, estimate_step
from tiledask.plan.timing.step_time import step_parts
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["Advice", "PlanCritique", "critique"]

ADVISED, PRINTED = 10, 8
"""Changes that are priced by simulation, and of them those that are printed, at most."""
WORTH_IT = 0.01
"""Part of a step's time below which a change is not advised."""
SLOWER = 1.05
"""What is slower by more than that by formula is not simulated."""
WAITS = {
    "bubble": (0.1, "a pipeline not yet filled, or draining"),
    "tp": (0.15, "tensor-parallel collectives"),
    "dp": (0.1, "the reduction of gradients"),
    "pp": (0.05, "transfers between stages"),
    "cp": (0.1, "keys and values of other pieces of the sequence"),
    "ep": (0.2, "tokens on their way to experts and back"),
}
"""Parts of a step, above which share waiting is called a fault, and for what it is."""
BESIDE_FLASH: tuple[dict[str, Any], ...] = ({}, {"recompute": "full"}, {"sequence_parallel": True})
"""What is tried together with flash attention."""


@dataclass(frozen=True)
class Advice:
    """One change to the layout, costed."""

    change: str
    layout: Layout
    peak: int
    """Bytes on the fullest device."""
    seconds: float
    """Of a step."""
    speedup: float
    """Seconds before over seconds after; infinite if the plan did not fit before."""

    def __str__(self) -> str:
        fast = f"{self.speedup:.3g} times as fast"
        return (
            f"{self.change}: {format_seconds(self.seconds)} a step, "
            f"{fast if self.speedup < np.inf else 'then it fits'}, "
            f"{format_bytes(self.peak)} a device"
        )


@dataclass(frozen=True, repr=False)
class PlanCritique(Printable):
    """What ``critique`` found; true if nothing is wrong and no single change is worth it."""

    fit: Fit
    step: StepEstimate | None
    """None for a layout that does not fit."""
    lines: tuple[Judged, ...]
    advice: tuple[Advice, ...]
    """Changes that fit and make a step shorter by 1 % or more, the best first: single ones, and
    flash attention with another. For a layout that does not fit: those that do."""

    def __bool__(self) -> bool:
        return all(line.good for line in self.lines) and not self.advice

    def __repr__(self) -> str:
        faults = sum(not line.good for line in self.lines)
        best = f"; first: {self.advice[0]}" if self.advice else ""
        return f"PlanCritique({self.fit.layout}: {faults} faults{best})"

    def __str__(self) -> str:
        return self.to_text().rstrip("\n")

    def printed(self) -> Iterator[Part]:
        yield from (f"  {line}" for line in self.lines)
        yield from (f"  → {advice}" for advice in self.advice[:PRINTED])
        if not self.advice and self.step is not None:
            yield "  no single change makes it 1 % faster"

    def to_dict(self) -> dict[str, object]:
        """The same as plain values, for JSON."""
        return {
            "layout": str(self.fit.layout),
            "verdict": self.fit.verdict,
            "seconds": None if self.step is None else self.step.total,
            "lines": [{"about": j.claim, "good": j.good, "why": j.why} for j in self.lines],
            "advice": [{**vars(each), "layout": str(each.layout)} for each in self.advice],
        }


def critique(
    model: Model | str,
    layout: Layout,
    cluster: ClusterSpec | str,
    recipe: str | Recipe = "mixed-adam-16",
    sequence: int | None = None,
    *,
    calibration: Calibration | str | None = None,
    framework: str | None = None,
) -> PlanCritique:
    """What is wrong with ``layout``, and which single change would be better.

    ``model`` and ``cluster`` may be names. Memory is judged by
    :func:`tiledask.plan.fitting.fit.fits`, time by
    :func:`tiledask.plan.timing.step.estimate_step`, with ``calibration`` and ``framework``; raises
    what they raise.

    >>> from tiledask.plan.inputs.load import load_cluster, load_model
    >>> found = critique(load_model("gpt2-xl"), Layout(pp=8, microbatches=8, tp=1),
    ...                  load_cluster("8xA100-80GB"), sequence=1024)
    >>> [line.claim for line in found.lines if not line.good]
    ['bubble', 'utilisation']
    >>> found.advice[0].seconds < found.step.total
    True
    """
    model, cluster, recipe = as_model(model), as_cluster(cluster), load_recipe(recipe)
    check_trains(recipe)
    sequence = check_run(model, layout, sequence)
    run = model, layout, cluster, recipe, sequence
    assumed: dict[str, Any] = {"calibration": calibration, "framework": framework}
    fit = fits(*run, **assumed)
    step = None if fit.verdict == "no" else estimate_step(*run, **assumed)
    lines, advice = _lines(fit, step), sorted(_advice(fit, step, assumed), key=lambda a: a.seconds)
    return PlanCritique(fit, step, tuple(Judged(*line) for line in lines), tuple(advice))


def _lines(fit: Fit, step: StepEstimate | None) -> Iterator[tuple[str, bool, str]]:
    """(what it is about, whether it is good, why)."""
    layout, cluster, node = fit.layout, fit.cluster, fit.cluster.devices_per_node
    yield "memory", fit.verdict != "no", f"{fit.verdict}: {fit.reason}"
    if layout.devices < cluster.devices:
        idle = f"{cluster.devices - layout.devices} of {cluster.devices} stay unused"
        degrees = f"dp {layout.dp} x cp {layout.cp} x tp {layout.tp} x pp {layout.pp}"
        yield "devices", False, f"{idle}: {degrees} = {layout.devices}"
    if layout.tp > node:
        sums = f"every layer then sums over {cluster.between_nodes.name}"
        yield "tensor parallelism", False, f"tp {layout.tp} leaves its node of {node}: {sums}"
    if cluster.uneven:
        yield "nodes", True, cluster.uneven
    for note in more_tp(fit.memory.model, layout):
        yield "key-value heads", True, note
    if step is None:
        return
    total = step.total
    rows = {row.part: row for row in step.rows}
    for name, (most, what) in WAITS.items():
        if (row := rows[name]).seconds > 0:
            part = f"{100 * row.seconds / total:.1f} % of a step ({format_seconds(row.seconds)})"
            rule = f"above {100 * most:.0f} % is a fault. {row.formula} ({row.source})"
            yield name, row.seconds / total <= most, f"{part} is waiting for {what}; {rule}"
    if layout.pp > 1:
        layers = fit.memory.model.layers
        counts = [layout.stage_layers(stage, layers) for stage in range(layout.pp)]
        ratio = max(counts) * len(counts) / sum(counts)
        fullest = f"the fullest of {len(counts)} stages has {max(counts)} layers, {ratio:.3g} times"
        why = f"{fullest} the mean of {sum(counts)}/{len(counts)}; above 1.1 is a fault"
        yield "balance", ratio <= 1.1, why
    if layout.recompute != "none":
        share = f"{100 * step.recompute / total:.1f} % of a step computes activations again"
        yield "recomputation", True, f"{share} ({layout.recompute})"
    work = f"MFU {100 * step.mfu:.1f} %: {step.flops.model:.3g} FLOP in {format_seconds(total)}"
    where = f"on {layout.devices} x {cluster.device.name}; below 30 % is a fault"
    yield "utilisation", step.mfu >= 0.3, f"{work} {where}"


def _advice(fit: Fit, step: StepEstimate | None, assumed: dict[str, Any]) -> Iterator[Advice]:
    """Of the neighbours those that are fastest by formula, and those of whose schedule there is
    no formula, simulated."""
    start, memory = fit.layout, fit.memory
    model, run = memory.model, (fit.cluster, memory.recipe, memory.sequence)
    tried = [*dict.fromkeys(_neighbours(fit))]
    if step is None:
        fix = fit.smallest_fix
        tried = [fix.layout] * (fix is not None and not fix.missing) + tried  # type: ignore[union-attr]
        fitting = (fits(model, each, *run, **assumed) for each in dict.fromkeys(tried))
        tried = [each.layout for each in fitting if each.verdict == "fits"]
    numbers = Numbers.of(start, *tried)
    by_formula = step_parts(model, run[0], numbers, *run[1:], **assumed).total
    now, *seconds = np.ravel(by_formula).tolist()
    before, most = (np.inf, np.inf) if step is None else (step.total, SLOWER * now)
    order = sorted(range(len(tried)), key=seconds.__getitem__)
    chosen = [n for n in order if seconds[n] <= most][:ADVISED]
    chosen += [n for n, layout in enumerate(tried) if layout.schedule not in CLOSED_FORMS]
    for layout in (tried[n] for n in dict.fromkeys(chosen)):
        again = fits(model, layout, *run, **assumed)
        if again.verdict != "fits":
            continue
        after = estimate_step(model, layout, *run, **assumed).total
        if after <= (1 - WORTH_IT) * before:
            was, now = vars(start), vars(layout)
            words = (f"{name} {was[name]} -> {now[name]}" for name in was if was[name] != now[name])
            yield Advice(", ".join(words), layout, again.memory.peak, after, before / after)


def _neighbours(fit: Fit) -> Iterator[Layout]:
    """Layouts of as many sequences a step that differ in one decision."""
    layout, model, cluster = fit.layout, fit.memory.model, fit.cluster
    for change in _changes(layout, cluster.devices):
        if "pp" in change and isinstance(layout.partition, tuple):
            change["partition"] = None
        try:
            other = replace(layout, **change)
            model.check_tp(other.tp)
            other.chunk_layers(model.layers)
        except ValueError:
            continue
        if other != layout and other.devices <= cluster.devices:
            yield other


def _changes(layout: Layout, devices: int) -> Iterator[dict[str, Any]]:
    """Fields with other values, or with their own; dp, tp and pp traded for each other, and unused
    devices for more copies, where the sequences of a step stay, in other numbers of
    micro-batches."""
    if layout.tp > 1:
        yield {"sequence_parallel": True}
    yield from ({"recompute": kind} for kind in ("none", "selective"))
    yield from ({"zero": zero} for zero in range(4) if layout.dp > 1)
    if not layout.flash_attention:
        yield from ({"flash_attention": True} | more for more in BESIDE_FLASH)
    if layout.pp > 1:
        yield from ({"interleave": v} for v in (1, 2, 3, 4, 6, 8))
        yield {"partition": "items"}
        names = (name for name in ("1f1b", "zb-h1") if name != layout.schedule)
        yield from ({"schedule": name, "interleave": 1} for name in names)
    size, many = layout.microbatch, layout.microbatches
    for times in (2, 4, 8):
        if many % times == 0:
            yield {"microbatch": size * times, "microbatches": many // times}
        if size % times == 0:
            yield {"microbatch": size // times, "microbatches": many * times}
    sequences, now, shapes = layout.dp * many, (layout.dp, layout.tp, layout.pp), set()
    for times in (2, 4, 8):
        one = (times, 1, 1), (1, times, 1), (1, 1, times)
        for up, down in product(one, (*one, (1, 1, 1))):
            grown = [n * a for n, a in zip(now, up, strict=True)]
            if not any(n % b for n, b in zip(grown, down, strict=True)):
                shapes.add(tuple(n // b for n, b in zip(grown, down, strict=True)))
    for dp, tp, pp in sorted(shapes - {now}):
        if dp * tp * pp * layout.cp <= devices and sequences % dp == 0:
            shape = {"dp": dp, "tp": tp, "pp": pp, "microbatches": sequences // dp}
            yield shape if pp > 1 else {**shape, "interleave": 1}
