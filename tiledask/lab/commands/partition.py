"""The answers of `tiledask partition`, and cuts drawn in letters, a line per device.

device 1  1-6    ████████████████ 6
device 2  7-12   ████████████████ 6
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.console import Console

from tiledask.lab.table import say
from tiledask.plan.splitting.assignment import read_assignment, stages_of
from tiledask.plan.splitting.exact import capacities
from tiledask.plan.splitting.judge import Verdict, layer_ranges
from tiledask.plan.splitting.partition import Partition, count_contiguous_splits, stage_name
from tiledask.plan.units import format_bytes

__all__ = ["cut_text", "show_partition", "show_verdict"]

_ROWS = 32
"""Devices that are drawn; the rest are counted."""
_BAR = 40
"""Letters of the longest bar."""


def cut_text(inputs: Mapping[str, Any], answer: Any) -> str:
    """An answer to "which layers on which device" in letters, right or wrong.

    ``inputs`` are those of a partition puzzle: costs and devices, perhaps speeds, chunks and
    communication.

    >>> print(cut_text({"costs": [1, 1, 2], "devices": 2}, "1-2 | 3"))
    device 1  1-2  ████████████████████████████████████████ 2
    device 2    3  ████████████████████████████████████████ 2
    """
    devices, chunks, costs = inputs["devices"], inputs.get("chunks", 1), inputs["costs"]
    speeds = inputs.get("speeds") or [1.0] * devices
    stages = stages_of(read_assignment(answer, len(costs), devices * chunks), devices, chunks)
    if sum(map(len, stages)) > 20 * len(costs):
        return ""
    rows = []
    for s, group in enumerate(stages):
        name = stage_name(s, devices, chunks)
        name = name if s < devices * chunks else f"no {name}"
        work = math.fsum(costs[n - 1] if 1 <= n <= len(costs) else 1.0 for n in group)
        time = work / speeds[s % devices] + _send(inputs, group)
        rows.append((name, layer_ranges(group) or "no layer", time))
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    unit = _BAR / (max(time for *_, time in rows) or 1)
    lines = [
        f"{name:{first}}  {layers:>{second}}  {'█' * round(time * unit)} {time:g}"
        for name, layers, time in rows[:_ROWS]
    ]
    return "\n".join(lines + [f"and {len(rows) - _ROWS} more"] * (len(rows) > _ROWS))


def _send(inputs: Mapping[str, Any], group: Sequence[int]) -> float:
    """Time to send after a stage's last layer."""
    sends = inputs.get("communication") or 0.0
    if inputs["devices"] == 1 or not group or not 1 <= group[-1] < len(inputs["costs"]):
        return 0.0
    return sends[group[-1] - 1] if hasattr(sends, "__len__") else sends


def show_partition(
    cut: Partition, inputs: Mapping[str, Any], console: Console, head: str = ""
) -> dict[str, Any]:
    """Print the best cut, drawn and counted; as JSON holds it."""
    chunks, layers = inputs["chunks"], len(cut.costs)
    cuts = count_contiguous_splits(layers, cut.stages)
    crossings = sum(a != b for a, b in pairwise(cut.place))
    each = f", {chunks} chunks on each" if chunks > 1 else ""
    of = f"the best of {cuts:,} contiguous cuts" if cuts > 1 else "the only contiguous cut"
    written = [layer_ranges([n + 1 for n in group]) for group in cut.layers]
    answer = " | ".join(written)
    devices = f"{cut.devices} device{'s' * (cut.devices > 1)}"
    say(console, f"{head or f'{layers} layers on {devices}{each}'}, {of}:\n  {answer}\n")
    say(console, cut_text(inputs, answer))
    what = "device" if chunks == 1 else "chunk"
    sizes = ", ".join(map(str, cut.sizes[:_ROWS])) + ", ..." * (cut.stages > _ROWS)
    say(console, f"\nlayers of each {what}: {sizes}")
    say(console, f"bottleneck, the time of the slowest {what}: {cut.bottleneck:g}")
    if chunks > 1:
        times = [f"{time:g}" for time in cut.device_times[:_ROWS]]
        say(console, f"all chunks of each device: {', '.join(times)}")
    if inputs.get("memory"):
        say(console, f"memory of each device: {_memory(cut, inputs)}")
    say(console, f"the activations change device {crossings} time{'s' * (crossings != 1)}")
    names = ("bounds", "sizes", "bottleneck", "place", "times", "device_times")
    counts = {"layers": layers, "devices": cut.devices, "chunks": chunks}
    return counts | {n: getattr(cut, n) for n in names} | {"crossings": crossings, "cuts": cuts}


def _memory(cut: Partition, inputs: Mapping[str, Any]) -> str:
    """The bytes of each device's layers, and of how many."""
    held = [0.0] * cut.devices
    for device, size in zip(cut.place, inputs["memory"], strict=True):
        held[device] += size
    caps = capacities(inputs["capacity"], cut.devices)
    each = [
        format_bytes(used) + ("" if math.isinf(cap) else f" of {format_bytes(cap)}")
        for used, cap in zip(held, caps, strict=True)
    ]
    return ", ".join(each[:_ROWS])


def show_verdict(
    verdict: Verdict, answer: str, inputs: Mapping[str, Any], console: Console
) -> dict[str, Any]:
    """Print what a judged answer is worth; of a wrong one the rule that it breaks, and no best."""
    say(console, f"{cut_text(inputs, answer)}\n")
    words = ("legal, and a better cut exists" if verdict else verdict.rule) + ": "
    if verdict.best:
        words = "right, no contiguous cut is better: "
    say(console, verdict.reason, bold=words, colour="green" if verdict else "red", wrap=True)
    names = ("ok", "rule", "reason", "crossings", "bottleneck", "times")
    said = {name: getattr(verdict, name) for name in names}
    return said | ({"best": verdict.best, "optimum": verdict.optimum} if verdict else {})
