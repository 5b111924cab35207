"""Does it fit? A verdict (overhead.py draws it), what decides it, and the smallest change that
makes it fit."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tiledask.plan.fitting.fixes import changes, fewest_devices, nearest
from tiledask.plan.fitting.memory import MemoryEstimate, estimate_memory
from tiledask.plan.fitting.overhead import VERDICTS, Overhead
from tiledask.plan.inputs.framework_memory import memory_of
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import load_cluster, load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import CPU, NVME, Recipe, load_recipe
from tiledask.plan.inputs.run import check_run, check_trains
from tiledask.plan.tables import Part, Printable
from tiledask.plan.timing.budget import Checkpointing, checkpointing
from tiledask.plan.timing.calibration import calibration_of
from tiledask.plan.timing.step import StepEstimate, estimate_step
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import whole_number

__all__ = ["TIGHT", "Fit", "fits", "used"]

TIGHT = "tight: it fits without all of the overhead, or if the estimate is not too low"
"""What the verdict between "fits" and "no" means."""
UNCHECKED = 0.25
"""The part of the activations that layers which no published run checks may be off by: a guess."""
OPTIMIZER = "optimizer states"
"""What ZeRO-1 shards, as one class."""


@dataclass(frozen=True, repr=False)
class Fit(Printable):
    """The answer to "does it fit?"."""

    memory: MemoryEstimate
    cluster: ClusterSpec
    own: int | None = None  # Bytes of the overhead that was given
    by: dict[str, Any] = field(default_factory=dict)
    """The ``calibration`` and ``framework`` that were named: those of the seconds of fixes."""
    why: str = "as its recipe is"  # Why the framework of the memory's recipe is assumed
    before: "Fit | None" = None  # Of a fix the one that did not fit

    @property
    def layout(self) -> Layout:
        return self.memory.layout

    @property
    def capacity(self) -> int:
        """Bytes of one device, nominal."""
        return self.cluster.device.memory_bytes

    @cached_property
    def overhead(self) -> Overhead:
        return Overhead.of(self.cluster.device, self.memory.recipe, self.layout, self.own)

    @property
    def expected(self) -> int:
        """Bytes that a device shows at its fullest: estimate and overhead."""
        return int(self.memory.peak + self.overhead.total)

    @property
    def assumed(self) -> str:
        """One sentence: whose program is assumed, and what it holds beyond the arithmetic."""
        name, held = self.memory.recipe.framework, memory_of(self.memory.recipe.framework)
        more = f"{format_bytes(held.allocator_bytes)} that the allocator does not use"
        more = more if self.own is None else f"an overhead of {format_bytes(self.own)}, as given"
        return f"run by {name} ({self.why}): {held.loss_bytes} B a logit at the loss, {more}"

    @property
    def missing(self) -> int:
        """Devices that the cluster lacks for it; 0 if it has enough."""
        return max(0, self.layout.devices - self.cluster.devices)

    @cached_property
    def lacking(self) -> str:
        """What a node has too little of for what its devices offload, if that is known."""
        many, cluster = min(self.cluster.devices_per_node, self.layout.devices), self.cluster
        there = {CPU: (cluster.host_bytes, "host memory"), NVME: (cluster.nvme_bytes, "disks")}
        for place, ledger in self.memory.offloaded.items():
            size, kind = there[place]
            if 0 < size < (needed := many * ledger.peak):
                few = f"{format_bytes(needed)}, more than the {format_bytes(size)} of its {kind}"
                return f"a node's devices offload {few}; offload less, or shard it over more nodes"
        return ""

    @property
    def verdict(self) -> str:
        """ "fits", "tight" (it depends on the overhead, or on a few percent) or "no" (the tensors
        leave no room for a CUDA context, or the cluster has fewer devices)."""
        return "no" if self.missing else self.on_enough

    @cached_property
    def on_enough(self) -> str:
        """The verdict if the cluster had as many devices as the layout needs."""
        at = self.overhead.verdict(self.memory.peak)
        return "no" if self.lacking else VERDICTS[at]

    @property
    def shortfall(self) -> int:
        """Bytes by which the estimate and the CUDA context exceed a device's nominal capacity."""
        needed = self.memory.peak + self.overhead.context
        return needed - self.capacity if needed > self.overhead.most else 0

    @cached_property
    def reason(self) -> str:
        """One sentence: the stage, the moment and the tensor class that decide, and why."""
        ledger, layout, device = self.memory.ledger, self.layout, self.cluster.device.name
        stage, moment, _ = ledger.binding
        # the largest class on ``stage`` at its fullest moment, what ZeRO-1 shards as one
        sharded = {state.tensor for state in self.memory.recipe.states if state.zero == 1}
        classes: Counter[str] = Counter()
        for name, size in ledger.by_tensor(stage).items():
            classes[OPTIMIZER if name in sharded else name] += size
        ((tensor, most),) = classes.most_common(1)
        low, high, capacity = map(format_bytes, (self.memory.peak, self.expected, self.capacity))
        where = f"stage {stage} of {layout.pp}, {moment}" if layout.pp > 1 else moment
        needs = f"the fullest device ({where}) needs {low}"
        largest = f"the largest class is {tensor}, {format_bytes(most)}"
        if self.verdict != "no":
            return f"{needs}, with overhead {high}, of {capacity} on {device}; {largest}"
        few = f"the layout needs {layout.devices} devices ({layout}), the cluster has "
        few = f"{few}{self.cluster.devices}" * bool(self.missing)
        if not self.shortfall:
            fits = f", and on {layout.devices} it fits" * (self.on_enough == "fits")
            return self.lacking or few + fits
        context = self.overhead.context
        needs += f" and a CUDA context of {format_bytes(context)}" if context else ""
        lacks = f"{format_bytes(self.shortfall)} more than the {capacity} of {device}"
        also = f"{few}, and even so " * bool(few)
        # what that class grows with, or what is left of it, or what would shard it
        recipe, zero = self.memory.recipe, {OPTIMIZER: 1}
        zero |= {state.tensor: state.zero for state in recipe.states}
        if tensor == "key-value cache":
            kept = f"{recipe.cached:,} cached tokens of a copy"
            why = f"it grows with the {kept}; cp, pp and tp cut it"
        elif tensor not in zero:
            kept = f"{layout.microbatch} x {self.memory.sequence} tokens"
            why = f"it grows with the micro-batch, {kept}"
        elif layout.zero >= zero[tensor]:
            why = f"that is what is left after ZeRO-{layout.zero} sharded it over dp {layout.dp}"
        else:
            slices = layout.tp * layout.pp
            whole = f"all of {'it' if slices == 1 else f'its 1/{slices} of the model'}"
            why = f"every data-parallel copy holds {whole}, so more data-parallel devices do not "
            why += f"help (ZeRO-{zero[tensor]} would shard it over dp)"
        return f"{also}{needs}, {lacks}; {largest}: {why}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What runs saved that no ledger counts, and what is assumed of nodes that are not full."""
        name = self.memory.recipe.framework
        saved = memory_of(name).uncounted if self.on_enough == "no" else ""
        had = f"runs by {name} had room where this has none: not counted is {saved}" * bool(saved)
        model, kept = self.memory.model, 0
        if model.unchecked:
            stage = self.memory.ledger.binding[0]
            kept = int(UNCHECKED * self.memory.ledger.by_tensor(stage).get("activations", 0))
        wide = f"no published run checks what its layers of {model.unchecked} keep"
        wide += f": {format_bytes(kept)} either way" if kept else ""
        scans = any(core.visible is None for kind in model.layer_kinds for core in kind.cores)
        passed = "that scans pass states on over cp is not planned"
        passed *= scans and self.layout.cp > 1
        found = had, self.cluster.uneven, *model.notes, wide * bool(model.unchecked), passed
        return tuple(filter(None, found))

    @cached_property
    def step(self) -> StepEstimate:
        """Where the time goes; on more devices, if the cluster has not enough."""
        memory, devices = self.memory, max(self.cluster.devices, self.layout.devices)
        run = replace(self.cluster, devices=devices), memory.recipe, memory.sequence
        return estimate_step(memory.model, memory.layout, *run, **self.by)

    def checkpointing(self, step: float = 0.0, **given: Any) -> Checkpointing:
        """How often each rank saves what it keeps beside gradients, and what that costs.

        ``step``: seconds of a step; 0: by `estimate_step`. ``given``: bandwidth (bytes per second
        of a rank), mtbf (seconds, of a device) and restart (seconds) other than Llama 3's.
        """
        recipe, ledger = self.memory.recipe, self.memory.ledger
        check_trains(recipe)
        kept = (s for s in recipe.states if s.of == "adapters" or not recipe.adapters)
        saved = {s.tensor for s in kept if not re.search("gradients|gathered", s.tensor)}
        stages = map(ledger.by_tensor, ledger.places)
        most = max(sum(stage[tensor] for tensor in saved & stage.keys()) for stage in stages)
        return checkpointing(most, step or self.step.total, self.layout.devices, **given)

    @cached_property
    def smallest_fix(self) -> "Fit | None":
        """The layout that fits on the cluster's devices with the fewest changes; of those the one
        that takes least time for a sequence, then the fewest devices.

        Searched over tp (that divides a node), pp, dp, zero, recompute and microbatch; another
        global batch is one change more. If none of these fits: the layout that does on the fewest
        devices at all (also by flash attention, sequence parallelism, cp, ep and chunks);
        ``missing`` says how many are lacking. None if it fits already or if nothing does.
        """
        now = self.memory
        for find in (nearest, fewest_devices) if self.verdict != "fits" else ():
            if (layout := find(now, self.cluster, self.own)) is not None:
                memory = estimate_memory(now.model, layout, now.recipe, now.sequence)
                fix = replace(self, memory=memory, before=self)
                if fix.on_enough == "fits":
                    return fix
        return None

    def to_dict(self) -> dict[str, Any]:
        """The verdict, why, what would fit, and the memory, as plain values for JSON."""
        names = "verdict", "reason", "shortfall", "expected", "assumed"
        facts = {name: getattr(self, name) for name in names} | self.memory.to_dict()
        fix = str(self.smallest_fix) if self.smallest_fix else None
        return facts | {"smallest_fix": fix, "notes": list(self.notes)}

    def __repr__(self) -> str:
        return f"Fit({self.verdict}: {self.reason})"

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of the fields in which a fix differs; the number of micro-batches follows."""
        was = (self.before or self).layout
        return tuple(name for name in changes(was, self.layout) if name != "microbatches")

    def __str__(self) -> str:
        """Of a fix what changes, what it takes and what is then held."""
        if (was := self.before) is None:
            return repr(self)
        old, new, there = was.layout, self.layout, self.cluster.devices
        few = f"it takes {new.devices}, {self.missing} more than the cluster has"
        need = few if self.missing else f"{new.devices} of {there} devices"
        if old.sequences != new.sequences:
            need += f", the global batch goes from {old.sequences} to {new.sequences}"
        with suppress(ValueError):  # of a recipe that does not train, or has no time model
            each, before = (fit.step.total / fit.layout.sequences for fit in (self, was))
            need += f", a sequence takes {each / before:.3g} times as long by estimate"
        low, high, capacity = map(format_bytes, (self.memory.peak, self.expected, self.capacity))
        change = ", ".join(changes(old, new).values()) or "no change but the number of devices"
        return f"{change} ({need}): {low}, with overhead {high}, of {capacity} per device"

    def printed(self, speed: str = "") -> Iterator[Part]:
        """The verdict, the ledger by stage, and what would fit. ``speed``: a line on how fast."""
        yield f"{self.verdict}{used(self.layout, self.cluster.devices)}", f": {self.reason}"
        if not self.missing:
            yield from [TIGHT] * (self.verdict == "tight") + [speed] * bool(speed)
            _, *ledger = self.memory.printed()
            yield from (*ledger, *self.notes)
        best = self.smallest_fix
        if best is not None and self.on_enough != "fits":
            yield "smallest fix", f": {best}"


def used(layout: Layout, devices: int) -> str:
    """What of a cluster a layout uses, behind a verdict; nothing where it uses all."""
    return f" on {layout.devices:,} of the {devices:,} devices" * (layout.devices < devices)


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
    ``framework``, a name in data/calibration/framework (default: the calibration's, or the one that
    the recipe is written after, else the device's usual one), says what the loss, FP8 and adapters
    hold and the allocator wastes; ``assumed`` says why. ``cached``: tokens, of all sequences that a
    copy serves, whose keys and values it keeps.

    >>> fit = fits("gpt-200b", Layout(dp=160), "160xA100-40GB")
    >>> fit.verdict, fit.smallest_fix.changed
    ('no', ('dp', 'tp', 'pp', 'recompute'))
    """
    model, cluster, recipe = load_model(model), load_cluster(cluster), load_recipe(recipe)
    sequence = check_run(model, layout, sequence)
    by = {"calibration": calibration, "framework": framework}
    known = calibration_of(cluster.device, recipe, **by)
    if overhead is not None:
        overhead = whole_number("overhead", overhead, 0, 10**24, of="bytes")
    recipe = replace(recipe, framework=known.framework, usual=known.usual)  # with its memory
    memory = estimate_memory(model, layout, recipe, sequence, cached=cached)
    return Fit(memory, cluster, overhead, by, known.why)
