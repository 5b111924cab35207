"""Does it fit? A verdict, what decides it, and the smallest change that makes it fit.

0 .... estimate .... + CUDA context ........ + whole overhead     capacity right of all: "fits"
                                                                  between the last two:  "tight"
                                                                  left of the context:   "no"
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tiledask.plan.fitting.fixes import SINGLE, Fix, Search, changes
from tiledask.plan.fitting.memory import MemoryEstimate, estimate_memory
from tiledask.plan.fitting.overhead import (
    VERDICTS,
    DeviceLimits,
    Overhead,
    device_limits,
    measured_over_estimated,
    overhead_of,
    verdicts,
)
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import as_cluster, as_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import CPU, NVME, Recipe, load_recipe
from tiledask.plan.inputs.run import check_run, check_trains, more_tp
from tiledask.plan.tables import Part, Printable
from tiledask.plan.timing.calibration import calibration_of, holds, uncounted
from tiledask.plan.timing.checkpointing import Checkpointing, checkpointing
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import whole_number

__all__ = ["TIGHT", "Fit", "Fix", "fits", "used"]

TIGHT = (
    "tight: what is counted fits, but not with all of the overhead, or not if the estimate is as "
    "far off as half of the published runs"
)
"""What the verdict between "fits" and "no" means."""
LARGEST = 10**24
"""Bytes of the largest overhead that is believed."""
OPTIMIZER = "optimizer states"
"""What ZeRO-1 shards, as one class."""
SMALLER = "mixed-adam-18 mixed-adam-16 mixed-momentum mixed-adam-8bit bf16-adam bf16-adam-8bit lora"
"""Recipes that a fix may turn to, those that keep most first."""


@dataclass(frozen=True, repr=False)
class Fit(Printable):
    """The answer to "does it fit?"."""

    memory: MemoryEstimate
    cluster: ClusterSpec
    overhead: Overhead
    by: dict[str, Any] = field(default_factory=dict)
    """The ``calibration`` and ``framework`` that were named: those of the seconds of fixes."""
    why: str = "as its recipe is"
    """Why the framework of the memory's recipe is assumed."""

    @property
    def assumed(self) -> str:
        """One sentence: whose program is assumed, and what it holds beyond the arithmetic."""
        name, over = self.memory.recipe.framework, self.overhead
        more = f"an overhead of {format_bytes(over.total)}, as given"
        if not self._given:
            whose, ratios = measured_over_estimated(name)
            good = sum(ratio * self.expected <= self.limits.reported for ratio in ratios)
            more = f"{format_bytes(over.allocator)} that the allocator does not use; as far off as "
            more += f"the published rows of {whose}, it has room in {good} of {len(ratios)}"
        return f"run by {name} ({self.why}): {holds(name).loss_bytes} B a logit at the loss, {more}"

    @property
    def layout(self) -> Layout:
        return self.memory.layout

    @property
    def capacity(self) -> int:
        """Bytes of one device, nominal."""
        return self.cluster.device.memory_bytes

    @property
    def _given(self) -> bool:
        """Whether the overhead is not the budget that the published rows were compared with."""
        return self.overhead != overhead_of(self.layout, self.memory.recipe.framework)

    @cached_property
    def limits(self) -> DeviceLimits:
        """Bytes of one device up to which it fits, and beyond which nothing does."""
        return device_limits(self.cluster.device, self.memory.recipe, not self._given)

    @cached_property
    def lacking(self) -> str:
        """What a node has too little of for what its devices offload; empty if it has enough, or
        nobody knows how much."""
        many = min(self.cluster.devices_per_node, self.layout.devices)
        host, disks = self.cluster.host_bytes, self.cluster.nvme_bytes
        there = {CPU: (host, "host memory"), NVME: (disks, "disks")}
        for place, ledger in self.memory.offloaded.items():
            size, kind = there[place]
            if 0 < size < (needed := many * ledger.peak):
                few = f"{format_bytes(needed)}, more than the {format_bytes(size)} of its {kind}"
                return f"a node's devices offload {few}; offload less, or shard it over more nodes"
        return ""

    @property
    def band(self) -> tuple[int, int]:
        """Bytes per device without and with the whole overhead budget."""
        return self.memory.peak, self.memory.peak + self.overhead.total

    @property
    def expected(self) -> int:
        """Bytes that the device is expected to show at its fullest: estimate and overhead."""
        return self.band[1]

    @cached_property
    def verdict(self) -> str:
        """The answer: "fits", "tight" (it depends on the overhead, or on the few percent that a
        device has beyond its nominal capacity or that estimates are off) or "no" (the tensors
        leave no room for a CUDA context, or the cluster has fewer devices)."""
        few = self.layout.devices > self.cluster.devices
        return "no" if few else self._on_enough

    @cached_property
    def _on_enough(self) -> str:
        """The verdict if the cluster had as many devices as the layout needs."""
        over = self.overhead.total, self.overhead.context
        by_memory = VERDICTS[verdicts(self.limits, self.memory.peak, *over)]
        return "no" if self.lacking else by_memory

    @property
    def shortfall(self) -> int:
        """Bytes by which the estimate and the CUDA context exceed the nominal capacity of a device,
        where they exceed the most of it; 0 if they do not."""
        needed = self.memory.peak + self.overhead.context
        return needed - self.capacity if needed > self.limits.most else 0

    @cached_property
    def reason(self) -> str:
        """One sentence: the stage, the moment and the tensor class that decide, and why."""
        ledger, layout, there = self.memory.ledger, self.layout, self.cluster.devices
        stage, moment, _ = ledger.binding
        # the largest class on ``stage`` at its fullest moment, what ZeRO-1 shards as one
        sharded = {state.tensor for state in self.memory.recipe.states if state.zero == 1}
        classes: Counter[str] = Counter()
        for name, size in ledger.by_tensor(stage).items():
            classes[OPTIMIZER if name in sharded else name] += size
        ((tensor, most),) = classes.most_common(1)
        low, high, capacity = map(format_bytes, (*self.band, self.capacity))
        device, context = self.cluster.device.name, self.overhead.context
        where = f"stage {stage} of {layout.pp}, {moment}" if layout.pp > 1 else moment
        needs = f"the fullest device ({where}) needs {low}"
        largest = f"the largest class is {tensor}, {format_bytes(most)}"
        if self.verdict == "fits":
            return f"{needs}, with overhead {high}, of {capacity} on {device}; {largest}"
        why = f"{largest}: {_why(self.memory, tensor)}"
        if self.verdict == "tight":
            whose, _ = measured_over_estimated(self.memory.recipe.framework)
            off = f"; as far off as the published rows of {whose}, less than half have room"
            over = f"with overhead {high} ({self.overhead}), of {capacity} on {device}"
            return f"{needs}, {over}{off * (self.expected <= self.capacity)}; {why}"
        few = ""
        if layout.devices > there:
            few = f"the layout needs {layout.devices} devices ({layout}), the cluster has {there}"
        if self.shortfall:
            few += ", and even so " * bool(few)
            beside = f" and a CUDA context of {format_bytes(context)}" if context else ""
            lacks = f"{format_bytes(self.shortfall)} more than the {capacity} of {device}"
            return f"{few}{needs}{beside}, {lacks}; {why}"
        if self.lacking:
            return self.lacking
        return few + f", and on {layout.devices} it fits" * (self._on_enough == "fits")

    @property
    def notes(self) -> tuple[str, ...]:
        """What a framework makes of the layout otherwise than another (memory is that of copies),
        what its runs saved that no ledger counts where this has no memory without it, and what is
        assumed of nodes that the cluster's devices do not fill."""
        notes, uneven = more_tp(self.memory.model, self.layout), self.cluster.uneven
        what = uncounted(name := self.memory.recipe.framework)
        if what and self._on_enough == "no":
            notes += [f"runs by {name} had room where this has none: not counted is {what}"]
        return (*notes, *[uneven] * bool(uneven))

    def checkpointing(self, step: float = 0.0, **given: Any) -> Checkpointing:
        """How often each rank saves what it keeps beside gradients, and what that costs.

        ``step``: seconds of a step; 0: by `estimate_step`. ``given``: bandwidth (bytes per second
        of a rank), mtbf (seconds, of a device) and restart (seconds) where they are not what is
        published of Llama 3's training. ConfigError for a recipe that does not train.
        """
        recipe, ledger = self.memory.recipe, self.memory.ledger
        check_trains(recipe)
        trained = "adapters" if recipe.adapters else "parameters"
        saved = {
            state.tensor
            for state in recipe.states
            if state.of == trained and not re.search("gradients|gathered", state.tensor)
        }
        stages = map(ledger.by_tensor, ledger.places)
        most = max(sum(stage[tensor] for tensor in saved & stage.keys()) for stage in stages)
        step = step or self._seconds
        return checkpointing(most, step, self.layout.devices, **given)

    @cached_property
    def smallest_fix(self) -> Fix | None:
        """The layout that fits on the cluster's devices with the fewest changes; of those the one
        that takes least time for a sequence, then the fewest devices.

        Searched over tp (that divides a node), pp, dp, zero, recompute and microbatch; fewer copies
        and smaller micro-batches become more micro-batches, so that the global batch stays. A fix
        that changes it has one change more. If none of these fits: the layout that does on the
        fewest devices at all (see ``fewest_devices``: also by flash attention, sequence
        parallelism, cp, ep and chunks, a copy's work kept), with ``missing`` saying how many are
        lacking. None if it fits already or if nothing does.
        """
        if self.verdict == "fits":
            return None
        near = self._fix(self.search.nearest())
        return near or self._fix(self.search.fewest_devices(), fewest=True)

    @property
    def search(self) -> Search:
        """Layouts near this one."""
        own = self.overhead.total if self._given else None
        return Search(self.memory, self.cluster, self.limits.sure, own)

    @cached_property
    def fixes(self) -> "dict[str, Fix | None]":
        """What fits if a single thing changes: name -> the nearest Fix, or None if none does.

        "flash_attention", "sequence_parallel": on; "dp", "tp", "pp": the smallest larger one, on
        however many devices it takes;
        "zero": the smallest higher stage; "microbatch": the largest smaller one, in more
        micro-batches; "recompute": the next that fits; "recipe": of those shipped that keep
        less for each parameter, the one that keeps most; "devices": the fewest with any dp, tp
        and pp, and all else as it is. Empty if the layout fits already, or lacks devices only.

        >>> from tiledask.plan.inputs.load import load_cluster, load_model
        >>> model, cluster = load_model("gpt-200b"), load_cluster("160xA100-40GB")
        >>> fit = fits(model, Layout(dp=2, tp=8, pp=10), cluster)
        >>> [name for name, fix in fit.fixes.items() if fix], fit.fixes["zero"].layout.zero
        (['zero', 'pp', 'recipe', 'devices'], 2)
        """
        if self._on_enough == "fits":
            return {}
        found = {name: self._fix(self.search.single(name)) for name in SINGLE}
        now, there = self.memory.recipe, {weight.name for weight in self.memory.model.layer}
        smaller = (
            self._fix(self.layout, recipe)
            for recipe in map(load_recipe, SMALLER.split())
            if now.trains
            and recipe.bytes_per_parameter < now.bytes_per_parameter
            and there.issuperset(recipe.adapters.matrices if recipe.adapters else ())
        )
        few = self.layout.devices > self.cluster.devices
        found["recipe"] = None if few else next(filter(None, smaller), None)
        return found | {"devices": self._fix(self.search.fewest_devices(("dp", "tp", "pp")))}

    def _fix(
        self, layout: Layout | None, recipe: Recipe | None = None, fewest: bool = False
    ) -> Fix | None:
        """The Fix that ``layout`` is; None for None, or if it does not fit with ``recipe``."""
        if layout is None:
            return None
        memory, now, slower = self.memory, self.memory.recipe, None
        known = replace(recipe or now, framework=now.framework, usual=now.usual)
        again = replace(
            self,
            memory=estimate_memory(memory.model, layout, known, memory.sequence),
            overhead=self.overhead if self._given else overhead_of(layout, known.framework),
        )
        if again._on_enough != "fits":  # or the node's host does not hold what is offloaded
            return None
        with suppress(ValueError):  # of a recipe that does not train, or has no time model
            each, before = (fit._seconds / fit.layout.sequences for fit in (again, self))
            slower = each / before
        changed = changes(self.layout, layout) + ("recipe",) * (recipe is not None)
        missing = max(0, layout.devices - self.cluster.devices)
        words = _sentence(self, again, changed, slower, fewest)
        return Fix(layout, changed, missing, words, known.name)

    @property
    def _seconds(self) -> float:
        """Of a step; on more devices, if the cluster has not enough."""
        from tiledask.plan.timing.step import estimate_step

        memory, devices = self.memory, max(self.cluster.devices, self.layout.devices)
        run = replace(self.cluster, devices=devices), memory.recipe, memory.sequence
        return float(estimate_step(memory.model, memory.layout, *run, **self.by).total)

    def to_dict(self) -> dict[str, Any]:
        """The verdict, why, what would fit, and the memory, as plain values for JSON."""
        fix = self.smallest_fix
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "shortfall": self.shortfall,
            "expected": self.expected,
            "assumed": self.assumed,
            **self.memory.to_dict(),
            "smallest_fix": str(fix) if fix else None,
            "notes": list(self.notes),
            "fixes": {name: str(each) if each else None for name, each in self.fixes.items()},
        }

    def to_frame(self) -> Any:
        """The ledger as a frame; its places are stages."""
        return self.memory.to_frame()

    def __repr__(self) -> str:
        return f"Fit({self.verdict}: {self.reason})"

    def printed(self, speed: str = "") -> Iterator[Part]:
        """The verdict, the ledger by stage, and what would fit. ``speed``: how fast it is, in a
        line."""
        yield f"{self.verdict}{used(self.layout, self.cluster.devices)}", f": {self.reason}"
        best, few = self.smallest_fix, self.layout.devices > self.cluster.devices
        if not few:
            yield from [TIGHT] * (self.verdict == "tight") + [speed] * bool(speed)
            yield from self.memory.stages()
            yield from self.notes
        if best is not None and self._on_enough != "fits":
            yield "smallest fix", f": {best}"
        for name, fix in self.fixes.items() if not few else ():
            if fix is not None and str(fix) != str(best):
                yield f"  {name} alone: {fix}"


def used(layout: Layout, devices: int) -> str:
    """What of a cluster a layout leaves unused, behind a verdict; nothing where it uses all."""
    fewer = layout.devices < devices
    return f" on {layout.devices:,} of the {devices:,} devices" if fewer else ""


def fits(
    model: Model | str,
    layout: Layout,
    cluster: ClusterSpec | str,
    recipe: str | Recipe = "mixed-adam-16",
    sequence: int | None = None,
    overhead: int | None = None,
    *,
    calibration: Any = None,
    framework: str | None = None,
    cached: int = 0,
) -> Fit:
    """Whether ``layout`` fits on the devices of ``cluster``, why, and what would.

    ``model`` and ``cluster`` may be names, as `load_model` and `load_cluster` read them.
    The capacity is the device's nominal one, 1e9 bytes a GB. ``overhead`` is the budget for
    what no tensor accounts for (bytes; default: ``overhead_of`` the layout).
    ``framework``, a name in data/calibration/framework, says what the loss, FP8 and adapters hold
    and the allocator wastes (default: the calibration's, or the one that the recipe is written
    after, else the device's usual one, as of `estimate_step`); ``assumed`` says which and why.
    ``cached``: tokens, of all sequences that a copy serves, whose keys and values it keeps. What a
    recipe offloads must have room in a node's host memory and on its disks, where the cluster says
    how much there is.

    >>> from tiledask.plan.inputs.load import load_cluster, load_model
    >>> model, cluster = load_model("gpt-200b"), load_cluster("160xA100-40GB")
    >>> fit = fits(model, Layout(dp=160), cluster)
    >>> fit.verdict, fit.smallest_fix.changed
    ('no', ('recompute', 'tp', 'pp', 'dp'))
    """
    model, cluster = as_model(model), as_cluster(cluster)
    sequence = check_run(model, layout, sequence)
    recipe = load_recipe(recipe)
    known = calibration_of(cluster.device, recipe, calibration, framework)
    recipe = known.holding(recipe)
    held = overhead_of(layout, recipe.framework)
    if overhead is not None:
        held = Overhead(0, 0, 0, whole_number("overhead", overhead, 0, LARGEST, of="bytes"))
    memory = estimate_memory(model, layout, recipe, sequence, cached=cached)
    by = {"calibration": calibration, "framework": framework}
    return Fit(memory, cluster, held, by, known.why)


def _why(memory: MemoryEstimate, tensor: str) -> str:
    """Why the class that binds is as large as it is, and what would not help."""
    layout, recipe = memory.layout, memory.recipe
    zero = {state.tensor: state.zero for state in recipe.states} | {OPTIMIZER: 1}
    if tensor == "key-value cache":
        return (
            f"it grows with the {recipe.cached:,} cached tokens of a copy, and is cut by cp, pp, tp"
        )
    if tensor not in zero:
        again = f", recompute {layout.recompute}" * (tensor == "activations")
        return (
            f"it grows with the micro-batch, {layout.microbatch} x {memory.sequence} tokens{again}"
        )
    if layout.zero >= zero[tensor]:
        if layout.dp > 1:
            return f"that is what is left after ZeRO-{layout.zero} sharded it over dp {layout.dp}"
        return f"dp is 1, so that ZeRO-{layout.zero} has nobody to share it with"
    slices = layout.tp * layout.pp
    whole = "all of it" if slices == 1 else f"all of its 1/{slices} of the model"
    return (
        f"every data-parallel copy holds {whole}, so more data-parallel devices do not help "
        f"(ZeRO-{zero[tensor]} would shard it over dp)"
    )


def _sentence(
    before: Fit, after: Fit, changed: tuple[str, ...], slower: float | None, fewest: bool
) -> str:
    """What changes, what it takes and what is then held. ``fewest``: nothing takes fewer devices,
    but what is held fixed."""
    old, new, there = before.layout, after.layout, before.cluster.devices
    recipes = {"recipe": (before.memory.recipe.name, after.memory.recipe.name)}
    values = {n: recipes.get(n) or (getattr(old, n), getattr(new, n)) for n in changed}
    steps = ", ".join(f"{name} {was} -> {now}" for name, (was, now) in values.items())
    need = f"{new.devices} of {there} devices"
    if new.devices > there:
        count, none = old.microbatch * old.microbatches, f"no layout on {there} device"
        none += f"{'s' * (there > 1)} fits with {count} sequence{'s' * (count > 1)} of "
        none += f"{after.memory.sequence} tokens a copy; the smallest that does"
        need = f"{none if fewest else 'it'} takes {new.devices}, {new.devices - there} more than "
        need += "the cluster has"
    if old.microbatches != new.microbatches:
        need += f", {new.microbatches} micro-batches a copy"
    if old.sequences != new.sequences:
        lost = f", {old.dp - new.dp} of {old.dp} copies are given up" * (old.dp > new.dp)
        need += f"{lost}, the global batch goes from {old.sequences} to {new.sequences}"
    if slower is not None:
        need += f", a sequence takes {slower:.3g} times as long by estimate"
    low, high, capacity = map(format_bytes, (*after.band, before.capacity))
    steps = steps or "no change but the number of devices"
    return f"{steps} ({need}): {low}, with overhead {high}, of {capacity} per device"
