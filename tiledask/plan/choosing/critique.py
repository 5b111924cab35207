"""What is wrong with a plan, and what would be better: every line with its numbers.

a layout  ->  fits? balanced? how much is waiting, and for what?      each Judged
          ->  one change at a time, costed: memory and seconds   ->   the advice, best first
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
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

ADVISED = 10
"""Changes that are priced by simulation."""
PRINTED = 8
"""Of them, at most."""
WORTH_IT = 0.01
"""Part of a step's time below which a change is not advised."""
SLOWER = 1.05
"""What is slower by more than that by formula is not simulated."""
LARGE = {"bubble": 0.1, "tp": 0.15, "dp": 0.1, "pp": 0.05, "cp": 0.1, "ep": 0.2}
"""Parts of a step above which waiting is called a fault."""
WAITS = {
    "bubble": "a pipeline not yet filled, or draining",
    "tp": "tensor-parallel collectives",
    "dp": "the reduction of gradients",
    "pp": "transfers between stages",
    "cp": "keys and values of other pieces of the sequence",
    "ep": "tokens on their way to experts and back",
}


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
        gain = (
            f"{self.speedup:.3g} times as fast" if self.speedup < float("inf") else "then it fits"
        )
        return (
            f"{self.change}: {format_seconds(self.seconds)} a step, {gain}, "
            f"{format_bytes(self.peak)} a device"
        )


@dataclass(frozen=True, repr=False)
class PlanCritique(Printable):
    """What ``critique`` found; true if nothing is wrong and no single change is worth it."""

    fit: Fit
    step: StepEstimate | None
    """None for a layout that does not fit."""
    assumed: dict[str, Any] = field(default_factory=dict)
    """The ``calibration`` and ``framework`` that were named."""

    @cached_property
    def lines(self) -> tuple[Judged, ...]:
        return tuple(_lines(self.fit, self.step))

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """Changes that fit and make a step shorter by 1 % or more, the best first: single ones, and
        flash attention with another. For a layout that does not fit: those that do."""
        start, memory = self.fit.layout, self.fit.memory
        run = self.fit.cluster, memory.recipe, memory.sequence
        tried = dict.fromkeys(_neighbours(self.fit))
        most = before = np.inf
        if self.step is not None:
            before, most = self.step.total, SLOWER * self._quick([start])[0]
        elif (fix := self.fit.smallest_fix) is not None and not fix.missing:
            tried = dict.fromkeys([fix.layout, *tried])
        fitting = (fits(memory.model, each, *run, **self.assumed) for each in tried)
        if self.step is None:
            tried = dict.fromkeys(fit.layout for fit in fitting if fit.verdict == "fits")
        better = []
        for layout in self._fastest(list(tried), most):
            again = fits(memory.model, layout, *run, **self.assumed)
            if again.verdict != "fits":
                continue
            seconds = estimate_step(memory.model, layout, *run, **self.assumed).total
            if seconds <= (1 - WORTH_IT) * before:
                change = ", ".join(
                    f"{name} {old} -> {getattr(layout, name)}"
                    for name, old in vars(start).items()
                    if getattr(layout, name) != old
                )
                better.append(Advice(change, layout, again.memory.peak, seconds, before / seconds))
        return tuple(sorted(better, key=lambda each: each.seconds))

    def _quick(self, layouts: Sequence[Layout]) -> list[float]:
        """Seconds of a step by formula, of each of one layout or more."""
        memory, numbers = self.fit.memory, Numbers.of(*layouts)
        run = memory.model, self.fit.cluster, numbers, memory.recipe, memory.sequence
        seconds: list[float] = np.ravel(step_parts(*run, **self.assumed).total).tolist()
        return seconds

    def _fastest(self, tried: list[Layout], most: float) -> list[Layout]:
        """The ADVISED layouts that are fastest by formula, and not slower than ``most``; and those
        of whose schedule there is none."""
        seconds = self._quick(tried) if tried else []
        order = sorted(range(len(tried)), key=seconds.__getitem__)
        chosen = [n for n in order if seconds[n] <= most][:ADVISED]
        chosen += [n for n, layout in enumerate(tried) if layout.schedule not in CLOSED_FORMS]
        return [tried[n] for n in dict.fromkeys(chosen)]

    def __bool__(self) -> bool:
        return all(line.good for line in self.lines) and not self.advice

    def __repr__(self) -> str:
        faults = sum(not line.good for line in self.lines)
        best = f"; first: {self.advice[0]}" if self.advice else ""
        return f"PlanCritique({self.fit.layout}: {faults} faults{best})"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.lines), *(f"→ {each}" for each in self.advice)])

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
    model, cluster = as_model(model), as_cluster(cluster)
    recipe = load_recipe(recipe)
    check_trains(recipe)
    sequence = check_run(model, layout, sequence)
    run = model, layout, cluster, recipe, sequence
    assumed: dict[str, Any] = {"calibration": calibration, "framework": framework}
    fit = fits(*run, **assumed)
    step = None if fit.verdict == "no" else estimate_step(*run, **assumed)
    return PlanCritique(fit, step, assumed)


def _lines(fit: Fit, step: StepEstimate | None) -> Iterator[Judged]:
    layout, cluster = fit.layout, fit.cluster
    yield Judged("memory", fit.verdict != "no", f"{fit.verdict}: {fit.reason}")
    if layout.devices < cluster.devices:
        idle = f"{cluster.devices - layout.devices} of {cluster.devices} stay unused"
        degrees = f"dp {layout.dp} x cp {layout.cp} x tp {layout.tp} x pp {layout.pp}"
        yield Judged("devices", False, f"{idle}: {degrees} = {layout.devices}")
    if layout.tp > cluster.devices_per_node:
        leaves = f"tp {layout.tp} leaves its node of {cluster.devices_per_node}"
        sums = f"every layer then sums over {cluster.between_nodes.name}"
        yield Judged("tensor parallelism", False, f"{leaves}: {sums}")
    if cluster.uneven:
        yield Judged("nodes", True, cluster.uneven)
    for note in more_tp(fit.memory.model, layout):
        yield Judged("key-value heads", True, note)
    if step is None:
        return
    total = step.total
    for part, most in LARGE.items():
        seconds = getattr(step, part)
        if seconds > 0:
            row = next(row for row in step.rows if row.part == part)
            waits = f"{100 * seconds / total:.1f} % of a step ({format_seconds(seconds)})"
            rule = f"above {100 * most:.0f} % is a fault. {row.formula} ({row.source})"
            why = f"{waits} is waiting for {WAITS[part]}; {rule}"
            yield Judged(part, seconds / total <= most, why)
    if layout.pp > 1:
        layers = fit.memory.model.layers
        counts = [layout.stage_layers(stage, layers) for stage in range(layout.pp)]
        ratio = max(counts) * len(counts) / sum(counts)
        fullest = f"the fullest of {len(counts)} stages has {max(counts)} layers, {ratio:.3g} times"
        why = f"{fullest} the mean of {sum(counts)}/{len(counts)}; above 1.1 is a fault"
        yield Judged("balance", ratio <= 1.1, why)
    if layout.recompute != "none":
        share = f"{100 * step.recompute / total:.1f} % of a step computes activations again"
        yield Judged("recomputation", True, f"{share} ({layout.recompute})")
    work = f"MFU {100 * step.mfu:.1f} %: {step.flops:.3g} FLOP in {format_seconds(total)}"
    where = f"on {layout.devices} x {cluster.device.name}; below 30 % is a fault"
    yield Judged("utilisation", step.mfu >= 0.3, f"{work} {where}")


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
    """Fields with other values, or with their own."""
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
    yield from _other_shapes(layout, devices)


BESIDE_FLASH: tuple[dict[str, Any], ...] = ({}, {"recompute": "full"}, {"sequence_parallel": True})
"""What is tried together with flash attention."""


def _other_shapes(layout: Layout, devices: int) -> Iterator[dict[str, Any]]:
    """dp, tp and pp traded for each other, and unused devices for more copies; the sequences
    of a step stay, in other numbers of micro-batches."""
    sequences, now = layout.dp * layout.microbatches, (layout.dp, layout.tp, layout.pp)
    shapes = set()
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
