"""What is wrong with a plan, and what would be better: every line with its numbers.

a layout  ->  fits? balanced? how much is waiting, and for what?      each Judged
          ->  one change at a time, costed: memory and seconds   ->   the advice, best first
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from tiledask.plan.fitting.fit import Fit, Fix, fits
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Layout, Numbers
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.inputs.run import check_trains
from tiledask.plan.judged import Judged
from tiledask.plan.tables import Part, Printable
from tiledask.plan.timing.calibration import Calibration
from tiledask.plan.timing.step import CLOSED_FORMS, StepEstimate
from tiledask.plan.timing.step_time import step_parts
from tiledask.plan.units import format_seconds

__all__ = ["Critique", "critique"]

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


@dataclass(frozen=True, repr=False)
class Critique(Printable):
    """What ``critique`` found; true if nothing is wrong and no single change is worth it."""

    fit: Fit
    lines: tuple[Judged, ...]
    advice: tuple[Fix, ...]
    """Changes that fit and make a step shorter by 1 % or more, the best first: single ones, and
    flash attention with another. For a layout that does not fit: those that do."""

    @property
    def step(self) -> StepEstimate | None:
        """None for a layout that does not fit."""
        return None if self.fit.verdict == "no" else self.fit.step

    def __bool__(self) -> bool:
        return all(line.good for line in self.lines) and not self.advice

    def __repr__(self) -> str:
        faults = sum(not line.good for line in self.lines)
        best = f"; first: {self.advice[0]}" if self.advice else ""
        return f"Critique({self.fit.layout}: {faults} faults{best})"

    def __str__(self) -> str:
        return self.to_text().rstrip("\n")

    def printed(self) -> Iterator[Part]:
        yield from (f"  {line}" for line in self.lines)
        yield from (f"  → {fix}" for fix in self.advice[:PRINTED])
        if not self.advice and self.step is not None:
            yield "  no single change makes it 1 % faster"

    def to_dict(self) -> dict[str, object]:
        """The same as plain values, for JSON; the speedup is infinite if it did not fit before."""
        before = np.inf if self.step is None else self.step.total
        return {
            "layout": str(self.fit.layout),
            "verdict": self.fit.verdict,
            "seconds": None if self.step is None else before,
            "lines": [{"about": j.claim, "good": j.good, "why": j.why} for j in self.lines],
            "advice": [
                {
                    "change": fix.change,
                    "layout": str(fix.layout),
                    "peak": fix.memory.peak,
                    "seconds": fix.step.total,
                    "speedup": before / fix.step.total,
                }
                for fix in self.advice
            ],
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
) -> Critique:
    """What is wrong with ``layout``, and which single change would be better.

    ``model`` and ``cluster`` may be names. Memory is judged by
    :func:`tiledask.plan.fitting.fit.fits`, time by
    :func:`tiledask.plan.timing.step.estimate_step`, with ``calibration`` and ``framework``; raises
    what they raise.

    >>> found = critique("gpt2-xl", Layout(pp=8, microbatches=8), "8xA100-80GB", sequence=1024)
    >>> [line.claim for line in found.lines if not line.good]
    ['bubble', 'utilisation']
    >>> found.advice[0].step.total < found.step.total
    True
    """
    recipe = load_recipe(recipe)
    check_trains(recipe)
    run = model, layout, cluster, recipe, sequence
    fit = fits(*run, calibration=calibration, framework=framework)
    advice = sorted(_advice(fit, recipe), key=lambda fix: fix.step.total)
    return Critique(fit, tuple(Judged(*line) for line in _lines(fit)), tuple(advice))


def _lines(fit: Fit) -> Iterator[tuple[str, bool, str]]:
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
    if fit.verdict == "no":
        return
    step, total = fit.step, fit.step.total
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


def _advice(fit: Fit, recipe: Recipe) -> Iterator[Fix]:
    """Of the neighbours those that are fastest by formula, and those of whose schedule there is
    no formula, simulated."""
    model, sequence, before = fit.memory.model, fit.memory.sequence, np.inf
    tried = [*dict.fromkeys(_neighbours(fit))]
    if fit.verdict == "no":
        nearest = fit.smallest_fix
        tried = [nearest.layout, *tried] if nearest and not nearest.missing else tried
        tried = [layout for layout in dict.fromkeys(tried) if fit.with_layout(layout)]
    numbers = Numbers.of(fit.layout, *tried)
    by_formula = step_parts(model, fit.cluster, numbers, recipe, sequence, **fit.by).total
    now, *seconds = np.ravel(by_formula).tolist()
    if fit.verdict == "no":
        now = np.inf
    else:
        before = fit.step.total
    order = sorted(range(len(tried)), key=seconds.__getitem__)
    chosen = [tried[n] for n in order if seconds[n] <= SLOWER * now][:ADVISED]
    chosen += [layout for layout in tried if layout.schedule not in CLOSED_FORMS]
    for layout in dict.fromkeys(chosen):
        fix = fit.with_layout(layout)
        if fix is not None and fix.step.total <= (1 - WORTH_IT) * before:
            yield fix


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
