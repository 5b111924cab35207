"""A change that makes a layout fit, as a value and as a sentence."""

from dataclasses import dataclass

from tiledask.plan.fitting.memory import MemoryEstimate
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.units import format_bytes

__all__ = ["SINGLE", "SMALLER", "Fix", "changes", "sentence"]

SINGLE = (
    "zero",
    "microbatch",
    "recompute",
    "flash_attention",
    "sequence_parallel",
    "tp",
    "pp",
    "dp",
)
"""Fields that are changed one at a time."""
OTHERS = ("cp", "ep", "expert_tp", "interleave", "schedule", "partition")
"""Fields that change only together with them."""
SMALLER = (
    "mixed-adam-18",
    "mixed-adam-16",
    "mixed-momentum",
    "mixed-adam-8bit",
    "bf16-adam",
    "bf16-adam-8bit",
    "lora",
)
"""Recipes that a fix may turn to, those that keep most first."""


@dataclass(frozen=True)
class Fix:
    """A layout that fits, near the one that does not."""

    layout: Layout
    changed: tuple[str, ...]
    """Names of the fields that differ."""
    devices: int
    """Devices that it needs."""
    missing: int
    """Devices that the cluster lacks for it; 0 if it has enough."""
    sentence: str
    recipe: str = ""
    """Name of the recipe."""
    seconds: float | None = None
    """Seconds of a step; None where the time model knows none."""
    slower: float | None = None
    """Seconds for each sequence of the global batch, over those of the layout that it starts
    from."""

    def __str__(self) -> str:
        return self.sentence


def changes(before: Layout, after: Layout) -> tuple[str, ...]:
    """Names of the fields in which ``after`` differs; the number of micro-batches follows."""
    return tuple(n for n in (*SINGLE, *OTHERS) if getattr(before, n) != getattr(after, n))


def sentence(
    before: MemoryEstimate,
    after: MemoryEstimate,
    cluster: ClusterSpec,
    band: tuple[int, int],
    changed: tuple[str, ...],
    slower: float | None,
    fewest: bool = False,
) -> str:
    """What changes, what it takes and what is then held: ``band``, bytes on the fullest device
    without and with overhead. ``fewest``: nothing takes fewer devices, but what is held fixed."""
    old, new = before.layout, after.layout
    steps = ", ".join(
        f"recipe {before.recipe.name} -> {after.recipe.name}"
        if name == "recipe"
        else f"{name} {getattr(old, name)} -> {getattr(new, name)}"
        for name in changed
    )
    missing = max(0, new.devices - cluster.devices)
    need = f"{new.devices} of {cluster.devices} devices"
    if missing:
        on = f"{cluster.devices} device{'s' * (cluster.devices > 1)}"
        none = f"no layout on {on} fits; the smallest that does" if fewest else "it"
        need = f"{none} takes {new.devices}, {missing} more than the cluster has"
    if missing and fewest:  # what all have that the fewest devices were looked for among
        how = "its own stages" if new.partition else f"{new.schedule} over even stages"
        count = old.microbatch * old.microbatches
        need += f", of all with recipe {after.recipe.name}, {count} sequence{'s' * (count > 1)} of "
        need += f"{after.sequence} tokens a copy (cp {old.cp}, or pieces of 4096 or more), "
        need += f"tp that divides a node, {how}"
    if old.microbatches != new.microbatches:
        need += f", {new.microbatches} micro-batches a copy"
    if old.sequences != new.sequences:
        lost = old.dp - new.dp
        need += f", {lost} of {old.dp} copies are given up" if lost > 0 else ""
        need += f", the global batch goes from {old.sequences} to {new.sequences}"
    if slower is not None:
        need += f", a sequence takes {slower:.3g} times as long by estimate"
    return (
        f"{steps or 'no change but the number of devices'} ({need}): {format_bytes(band[0])}, "
        f"with overhead {format_bytes(band[1])}, of "
        f"{format_bytes(cluster.device.memory_bytes)} per device"
    )
