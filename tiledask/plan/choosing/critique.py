"""What is wrong with a plan, and what would be better: every line with its numbers.

a layout  ->  fits? balanced? how much is waiting, and for what?      each Judged
          ->  one change at a time, costed: memory and seconds   ->   the advice, best first
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tiledask.plan.choosing.search import Plan, Plans
from tiledask.plan.fitting.fit import Fit, fits
from tiledask.plan.fitting.fixes import changes
from tiledask.plan.fitting.space import CHUNKS, COLUMNS, Space, layouts_of
from tiledask.plan.fitting.vectorized import ORDERS
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import ITEMS, RECOMPUTE, Layout, Numbers
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.inputs.run import check_trains
from tiledask.plan.tables import MARKS, Judged, Part, Printable, Table
from tiledask.plan.timing.calibration import Calibration
from tiledask.plan.timing.step import StepEstimate
from tiledask.plan.units import format_bytes, format_seconds

__all__ = ["Critique", "critique"]

ADVISED, PRINTED = 10, 8
"""Layouts that are simulated, and changes that are printed, at most."""
WORTH_IT = 0.01
"""Part of a step's time below which a change is not advised."""
WAITS = {
    "bubble": (0.1, "a pipeline not yet filled, or draining"),
    "tp": (0.15, "tensor-parallel collectives"),
    "dp": (0.1, "the reduction of gradients"),
    "pp": (0.05, "transfers between stages"),
    "cp": (0.1, "keys and values of other pieces of the sequence"),
    "ep": (0.2, "tokens on their way to experts and back"),
}
"""Parts of a step, above which share waiting is called a fault, and for what it is."""
FREE: tuple[dict[str, Any], ...] = (
    {"tp": None, "pp": None, "sequence_parallel": (False, True)},
    {"microbatch": None},
    {"interleave": CHUNKS, "partition": (None, ITEMS)},
    {"zero": (0, 1, 2, 3)},
    {"recompute": RECOMPUTE},
    {"flash_attention": (True,), "recompute": RECOMPUTE, "sequence_parallel": (False, True)},
)
"""What may be otherwise together, all else as it is: dp follows, so that sequences and devices
stay, or all of the cluster's are used."""


@dataclass(frozen=True, repr=False)
class Critique(Printable):
    """What ``critique`` found; true if nothing is wrong and no single change is worth it."""

    fit: Fit
    lines: tuple[Judged, ...]
    advice: tuple[Plan, ...]
    """Layouts that fit, differ in one choice and make a step 1 % shorter or more, best first."""
    step: StepEstimate | None
    """None for a layout that does not fit."""

    def __bool__(self) -> bool:
        return all(line.holds for line in self.lines) and not self.advice

    def __repr__(self) -> str:
        faults = sum(not line.holds for line in self.lines)
        best = f"; first: {self.advice[0]}" if self.advice else ""
        return f"Critique({self.fit.layout}: {faults} faults{best})"

    def __str__(self) -> str:
        return self.to_text().rstrip("\n")

    def printed(self) -> Iterator[Part]:
        # the formula and its source, a second sentence, where something is wrong
        whys = (j.why.partition(". ")[0] if j.holds else j.why for j in self.lines)
        found = [(MARKS[j.holds], j.claim, why) for j, why in zip(self.lines, whys, strict=True)]
        yield Table(("", "point", "found"), found, left=(0, 1, 2))
        if advice := self.to_dict()["advice"][:PRINTED]:
            rows = [
                (  # a line ends between fields: a name stays with its values
                    each["change"].replace(" ", "\u00a0").replace(",\u00a0", ", "),
                    format_seconds(each["seconds"]),
                    f"{each['speedup']:.3g}" if self.step else "then it fits",
                    format_bytes(each["peak"]),
                )
                for each in advice
            ]
            yield Table(("→ change", "a step", "times as fast", "a device"), rows)
        elif self.step is not None:
            yield "no single change makes it 1 % faster"

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON; the speedup is infinite if it did not fit before."""
        before, advice = np.inf if self.step is None else self.step.total, []
        for plan in self.advice:
            change = ", ".join(changes(self.fit.layout, plan.layout).values())
            found = {"change": change, "layout": str(plan.layout), "peak": plan.peak}
            advice.append(found | {"seconds": plan.seconds, "speedup": before / plan.seconds})
        return {
            "layout": str(self.fit.layout),
            "verdict": self.fit.verdict,
            "seconds": None if self.step is None else self.step.total,
            "lines": [{"about": j.claim, "good": j.holds, "why": j.why} for j in self.lines],
            "advice": advice,
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
    >>> [line.claim for line in found.lines if not line.holds]
    ['bubble', 'utilisation']
    >>> found.advice[0].seconds < found.step.total
    True
    """
    recipe = load_recipe(recipe)
    check_trains(recipe)
    given = model, layout, cluster, recipe, sequence
    fit = fits(*given, calibration=calibration, framework=framework)
    lines, step = tuple(Judged(*line) for line in _lines(fit)), None
    if fit.verdict != "no":
        step = fit.step
    # the layouts that differ in one choice; those that are fastest by formula are simulated
    memory, cluster, before = fit.memory, fit.cluster, np.inf if step is None else step.total
    own: dict[str, Any] = {each.name: (getattr(layout, each.name),) for each in fields(Space)}
    own["partition"] = (ITEMS if layout.partition == ITEMS else None,)
    own["schedule"] = (layout.schedule if layout.schedule in ORDERS else "1f1b",)
    run = memory.model, cluster, layout.sequences, memory.sequence
    devices = sorted({min(layout.devices, cluster.devices), cluster.devices})
    found = [layouts_of(*run, Space(**own | free), devices) for free in FREE]
    nearest = fit.smallest_fix if step is None else None
    if nearest and not nearest.missing and nearest.layout.schedule in ORDERS:
        numbers = vars(Numbers.of(nearest.layout))
        found.append({name: np.array([numbers[name]]) for name in COLUMNS})
    n = {name: np.concatenate([each[name] for each in found]) for name in COLUMNS}
    plans = Plans((*run[:3], memory.recipe, memory.sequence), fit.by, n, {}).settle(ADVISED)
    good = (p for p in plans.settled if p.verdict == "fits" and p.layout != layout)
    worth: dict[Any, Plan] = {}  # of two that differ by sequence parallelism alone the faster
    for plan in (p for p in good if p.seconds <= (1 - WORTH_IT) * before):
        alike = vars(plan.layout) | {"sequence_parallel": None}
        worth.setdefault(tuple(alike.values()), plan)
    return Critique(fit, lines, tuple(worth.values()), step)


def _lines(fit: Fit) -> Iterator[tuple[str, bool, str]]:
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
    rows = {row["part"]: row for row in step.rows}
    for name, (most, what) in WAITS.items():
        if (seconds := rows[name]["seconds"]) > 0:
            part = f"{100 * seconds / total:.1f} % of a step ({format_seconds(seconds)})"
            source = "Formula: {formula} ({source})".format_map(rows[name])
            rule = f"above {100 * most:.0f} % is a fault. {source}"
            yield name, seconds / total <= most, f"{part} is waiting for {what}; {rule}"
    if layout.pp > 1:
        layers = fit.memory.model.layers
        counts = [layout.stage_layers(stage, layers) for stage in range(layout.pp)]
        mean = sum(counts) / len(counts)
        why = f"the fullest of {len(counts)} stages has {max(counts)} layers, the mean"
        why += f" is {mean:.4g}; above 1.1 times the mean is a fault"
        yield "balance", max(counts) <= 1.1 * mean, why
    if layout.recompute != "none":
        share = f"{100 * step.recompute / total:.1f} % of a step computes activations again"
        yield "recomputation", True, f"{share} ({layout.recompute})"
    work = f"MFU {100 * step.mfu:.1f} % on {layout.devices} x {cluster.device.name}"
    yield "utilisation", step.mfu >= 0.3, f"{work}; below 30 % is a fault"
