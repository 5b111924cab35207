"""Run what a memory plan claims: workers hold the states, do the step, and are refused too much.

number of parameters   each device: its states, gradients, one optimizer step
Model                  stage 0    F0 F1 B0 F2 B1 B2 step      in the layout's schedule; blocks
                       stage 1       F0 B0 F1 B1 F2 B2 step   travel from worker to worker

Devices that hold the same are run once; with fewer workers than devices, in turn.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from distributed import Client

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.connecting.connect import cluster_of
from tiledask.distributed.deadlines import bounded, seconds_of
from tiledask.distributed.memory.case import MemoryCase
from tiledask.distributed.memory.device_run import DeviceRun, run_pipeline, run_states
from tiledask.errors import ConfigError, PlacementError
from tiledask.plan import html
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.ledger import Ledger
from tiledask.plan.units import format_bytes, parse_bytes
from tiledask.plan.whole import is_whole, whole_number
from tiledask.tile.memory import Refused
from tiledask.tile.optimizers import check_states

__all__ = ["TOLERANCE", "ClaimRun", "DeviceRun", "run_claim"]

TOLERANCE = 0.05
"""Relative difference between predicted and measured peak with which a claim still holds."""
SCHEDULES = ("naive", "gpipe", "1f1b", "eager-1f1b")
"""With one chunk on a stage and whole backwards."""
RECOMPUTED = ("none", "full")
_OF_MODEL = "hidden layers heads ffn vocab head_dim tied learned_pos unused_pos name source"
_OF_LAYOUT = "dp tp pp microbatch microbatches zero recompute schedule partition"
"""What may be chosen; all other fields are a plain decoder's."""


@dataclass(frozen=True, repr=False)
class ClaimRun:
    """A claim about memory, predicted and run."""

    case: MemoryCase
    name: str
    scale: int
    """Bytes and parameters of the claim per byte and parameter run."""
    devices: tuple[DeviceRun, ...]
    """Those that were run."""
    seconds: float

    @cached_property
    def predicted(self) -> Ledger:
        """What the planner says; places are stages; of one device each."""
        return self.case.predicted

    @cached_property
    def simulated(self) -> Ledger:
        """What its program holds, instruction by instruction; places are stages."""
        return self.case.simulated

    @property
    def measured(self) -> Ledger:
        """What the fullest device of each stage held, at the fullest instant of each moment."""
        fullest: dict[int, DeviceRun] = {}
        for device in self.devices:
            now = fullest.setdefault(device.role.stage, device)
            fullest[device.role.stage] = max(now, device, key=lambda each: each.peak)
        return Ledger.of(row for _, device in sorted(fullest.items()) for row in device.rows)

    @property
    def refused(self) -> Refused | None:
        """The MemoryError of the first device that was refused memory; None if none was."""
        return next((d.refused for d in self.devices if d.refused), None)

    @property
    def predicted_verdict(self) -> str:
        """ "fits" or "does not fit"."""
        return _verdict(self.predicted.peak <= self.case.capacity)

    @property
    def executed_verdict(self) -> str:
        """ "fits" or "does not fit"."""
        return _verdict(self.refused is None)

    @property
    def widest(self) -> int:
        """The stage whose measured and predicted peaks differ most."""
        ran, said = self.measured.per_place, self.predicted.per_place
        return max(ran, key=lambda stage: abs(ran[stage] / said[stage] - 1))

    @property
    def ratio(self) -> float | None:
        """Measured peak over predicted peak, of the stage where they differ most; None if a
        device was refused memory: then nobody saw its peak."""
        if self.refused:
            return None
        return self.measured.per_place[self.widest] / self.predicted.per_place[self.widest]

    @property
    def agrees(self) -> bool:
        """Whether both verdicts are the same, and all peaks within TOLERANCE if it ran."""
        same = self.predicted_verdict == self.executed_verdict
        return same and (self.ratio is None or abs(self.ratio - 1) <= TOLERANCE)

    def __str__(self) -> str:
        found = f"measured {format_bytes(self.measured.peak)}"
        if self.refused:
            found = f"refused at {format_bytes(self.refused.needed)}: {self.refused}"
        return (
            f"{self.name}, {self.case.layout}, {self.case.recipe.name}, at 1:{self.scale} on "
            f"{format_bytes(self.case.capacity)}: predicted "
            f"{format_bytes(self.predicted.peak)}, {self.predicted_verdict}; executed, "
            f"{self.executed_verdict}, {found}"
        )

    def __repr__(self) -> str:
        return f"ClaimRun({self})"

    def _repr_html_(self) -> str:
        said, every, ran = self.predicted.per_place, self.case.layout.devices, len(self.devices)
        head = ("stage", "slice", "copy", "worker", "predicted", "held at most", "end")
        rows = [
            (*d.role, d.slot, format_bytes(said[d.role.stage]), format_bytes(d.peak), d.outcome)
            for d in self.devices
        ]
        others = (
            f"; {ran} of {every} devices were run; the others hold the same, or a rounding less, "
            f"or stopped when this one was refused"
        )
        words = f"{self}{others if ran < every else ''}"
        return html.table(head, rows, words, style={6: "text-align:left"})


def _verdict(fits: bool) -> str:
    return "fits" if fits else "does not fit"


@bounded
def run_claim(
    what: Model | int,
    layout: Layout,
    capacity: int | str,
    cluster: Cluster | Client | str,
    *,
    recipe: str | Recipe = "mixed-adam-16",
    sequence: int = 128,
    scale: int | None = None,
    timeout: float | None = None,
) -> ClaimRun:
    """One training step's memory on ``cluster``, beside what the planner says of it.

    what
        A number of parameters: every device allocates its states (cut by tp x pp, partitioned by
        ZeRO), gets gradients, and does the optimizer's step. Nothing is known of activations.
        Or a Model like GPT-2, executed as it is: every stage on a worker of its own runs its
        layers forward and backward in the layout's schedule, and does the step.
    capacity
        Bytes of one device, or text such as "40GB". An array that would pass it is refused with
        a MemoryError; that device stops, and the claim comes back as "does not fit".
    scale
        Parameters and capacity are divided by it. Default: 1000 for a number of parameters; a
        Model is run at 1.
    timeout
        Seconds until a DeadlineError (default 300).

    Bytes are those of the arrays in a device's memory, to the byte; what fused kernels keep in
    registers, Python and Dask are not among them. Of a Model, slice 0 of tp and copy 0 of dp run:
    sums over slices are left out, copies are taken to have the same micro-batches. Shapes, and
    so bytes, are those of the whole layout.

    Raises ConfigError for what cannot be run, PlacementError for fewer workers than stages of a
    Model, ClusterLostError if a worker dies meanwhile.
    """
    cap, is_model = parse_bytes(capacity), isinstance(what, Model)
    scale = _scale(what, scale)
    whole = what if isinstance(what, Model) else int(what) // scale
    case = MemoryCase(whole, layout, load_recipe(recipe), sequence, cap // scale)
    workers = cluster_of(cluster, "a claim")
    _check(case, workers)
    begun = time.monotonic()
    devices = (run_pipeline if is_model else run_states)(case, workers, seconds_of(timeout))
    name = what.name if isinstance(what, Model) else f"{what:,} parameters"
    return ClaimRun(case, name, scale, devices, time.monotonic() - begun)


def _scale(what: Model | int, scale: int | None) -> int:
    if not isinstance(what, Model) and not is_whole(what, 1):
        raise ConfigError(
            f"a claim is about a Model or a number of parameters of 1 or more, got {what!r}; "
            f"td.load_model(name).parameters is such a number"
        )
    usual = 1 if isinstance(what, Model) else 1000
    scale = whole_number("scale", usual if scale is None else scale, 1)
    if isinstance(what, Model) and scale > 1:
        raise ConfigError(f"a Model is run as it is, at scale 1, got {scale}")
    if not isinstance(what, Model) and what < scale:
        raise ConfigError(f"{what} parameters at 1:{scale} are less than one; scale less")
    return scale


def _check(case: MemoryCase, cluster: Cluster) -> None:
    """Refuse what no code here executes, and a Model for which there are too few workers."""
    check_states(case.recipe)
    model, layout, recipe = case.what, case.layout, case.recipe
    if layout.cp > 1:
        raise ConfigError(f"what can be run has cp=1, got {layout.cp}")
    if not isinstance(model, Model):
        return
    for wrong, words in _refusals(model, layout, recipe, case.sequence):
        if wrong:
            raise ConfigError(
                f"what can be executed {words}; or run the states alone of "
                f"model.parameters={model.parameters:,}"
            )
    if cluster.slots < layout.pp:
        raise PlacementError(
            f"{layout.pp} stages run at once, each on a worker, and the cluster has "
            f"{cluster.slots}; {cluster.with_slots(layout.pp)}"
        )


def _refusals(
    model: Model, layout: Layout, recipe: Recipe, sequence: int
) -> Iterator[tuple[bool, str]]:
    """(whether a model is refused, the rule and what was given)."""
    for given, free in ((model, _OF_MODEL), (layout, _OF_LAYOUT)):
        plain = type(given)(**{name: getattr(given, name) for name in free.split()})
        for field, value in vars(plain).items():
            got = getattr(given, field)
            yield got != value, f"is a decoder like GPT-2's with {field}={value!r}, got {got!r}"
    for field, allowed in (("schedule", SCHEDULES), ("recompute", RECOMPUTED)):
        got = getattr(layout, field)
        yield got not in allowed, f"has {field} of {', '.join(allowed)}, got {got!r}"
    positions = model.learned_pos
    yield (
        0 < positions < sequence,
        f"of {model.name}, which has learned {positions} positions, has a sequence of that or "
        f"less, got {sequence}",
    )
    yield not recipe.trains, f"trains, and recipe {recipe.name!r} does not train"
    whole = layout.zero < 3 or layout.dp == 1
    yield (
        whole and recipe.weight_bytes != recipe.compute_bytes,
        f"casts weights where ZeRO 3 gathers them, and recipe {recipe.name!r} keeps weights of "
        f"{recipe.weight_bytes} B and computes with {recipe.compute_bytes} B; use zero=3 and dp "
        f"of 2 or more",
    )
