"""`tiledask partition`: the best cut, or what an answer is worth; cuts drawn a line per device.

device 1  1-6    ████████████████ 6
device 2  7-12   ████████████████ 6
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError, short
from tiledask.lab.commands.options import WHOLE, Result
from tiledask.lab.table import say
from tiledask.plan.splitting.assignment import read_assignment, stages_of
from tiledask.plan.splitting.exact import capacities, count
from tiledask.plan.splitting.judge import Verdict, layer_ranges
from tiledask.plan.splitting.partition import (
    Partition,
    count_contiguous_splits,
    layer_costs,
    stage_name,
)
from tiledask.plan.units import format_bytes, parse_bytes

__all__ = ["PARTITION_OPTIONS", "costs_of", "cut_text", "run_partition"]

PARTITION_OPTIONS = (
    ("LAYERS", "a number of equal layers, or costs such as 1,1,2,4"),
    ("DEVICES", "how many there are", WHOLE | {"nargs": "?"}),
    ("--devices N", "the same", WHOLE | {"dest": "devices_option"}),
    ("--speeds", "one per device, such as 1,1,2,2", {"default": None}),
    ("--chunks", "per device, in turns (%(default)s)", WHOLE | {"default": 1}),
    ("--memory", "bytes of each layer, such as 1GB or 4GB,1GB,1GB,4GB", {"default": None}),
    ("--capacity", "bytes of each device, such as 8GB or 16GB,8GB", {"default": None}),
    (
        "--communication",
        "time to send across a cut; one, or one per place",
        {"default": None},
    ),
    ("--judge ANSWER", "the layers of each device, such as '1-6 | 7-12'"),
    ("--solution", "with --judge: the best cut as well"),
    """examples:
  tiledask partition 24 4
  tiledask partition 2,1,1,1,1,4 3 --speeds 1,1,2
  tiledask partition 12 3 --judge '1,4,7,10 | 2,5,8,11 | 3,6,9,12'""",
)
ROWS = 32
"""Devices that are drawn; the rest are counted."""
BAR = 40
"""Letters of the longest bar."""


def run_partition(args: argparse.Namespace, console: Any) -> Result:
    """The best cut, or what --judge is worth: 1 where it breaks a rule."""
    inputs = _inputs(args)
    costs, devices = inputs["costs"], inputs["devices"]
    given = {name: value for name, value in inputs.items() if name not in ("costs", "devices")}
    result, code = {"layers": len(costs), "devices": devices, "chunks": inputs["chunks"]}, 0
    if args.judge:
        verdict = td.judge(args.judge, devices=devices, costs=costs, **given)
        result |= _show_verdict(verdict, args.judge, inputs, console)
        code = 0 if verdict else 1
    if not args.judge or args.solution:
        cut = td.partition(costs, devices * inputs["chunks"], **given)
        facts = _show_partition(cut, inputs, console)
        result |= {"solution": facts} if args.judge else facts
    return code, result


def _inputs(args: argparse.Namespace) -> dict[str, Any]:
    """What was typed, by the names of td.partition and td.judge."""
    costs, chunks = costs_of(args.layers), count(args.chunks, "--chunks")
    layers, given = len(costs), {args.devices, args.devices_option} - {None}
    if len(given) != 1:
        raise ConfigError(
            f"one number of devices is needed, got {' and '.join(map(str, given)) or 'none'}; "
            f"write it behind the layers, such as: partition {args.layers[:40]} 4"
        )
    devices = count(given.pop(), "devices")
    if layers < devices * chunks:
        what, most = ("device", layers) if chunks == 1 else ("chunk", layers // chunks)
        stages = f"{devices} devices" + (f" x {chunks} chunks" if chunks > 1 else "")
        raise ConfigError(
            f"every {what} needs a layer of its own, and {layers} layers are fewer than {stages}; "
            f"use at most {most} devices"
        )
    memory, capacity = (
        [parse_bytes(word) for word in text.split(",")] if text else None
        for text in (args.memory, args.capacity)
    )
    if (memory is None) != (capacity is None):
        missing = "--capacity 8GB" if capacity is None else "--memory 1GB"
        raise ConfigError(
            f"--memory, the bytes of each layer, and --capacity, those of each device, go "
            f"together; add one such as {missing}"
        )
    return {
        "costs": costs,
        "devices": devices,
        "speeds": _numbers(args.speeds, "speeds") if args.speeds else None,
        "memory": memory * layers if memory and len(memory) == 1 else memory,
        "capacity": _one_or_all(capacity),
        "communication": _one_or_all(
            _numbers(args.communication, "communication") if args.communication else None
        ),
        "chunks": chunks,
    }


def costs_of(layers: str) -> Sequence[float]:
    """Costs from a number of equal layers, or from numbers between commas."""
    return layer_costs(int(layers[:30]) if layers.isdecimal() else _numbers(layers, "costs"))


def _numbers(text: str, what: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"{what} are numbers between commas, such as 1,1,2; got {short(text)}"
        ) from None


def _one_or_all(values: list[Any] | None) -> Any:
    """The number itself where one stands for all."""
    return values[0] if values and len(values) == 1 else values


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
    unit = BAR / (max(time for *_, time in rows) or 1)
    lines = [
        f"{name:{first}}  {layers:>{second}}  {'█' * round(time * unit)} {time:g}"
        for name, layers, time in rows[:ROWS]
    ]
    return "\n".join(lines + [f"and {len(rows) - ROWS} more"] * (len(rows) > ROWS))


def _send(inputs: Mapping[str, Any], group: Sequence[int]) -> float:
    """Time to send after a stage's last layer."""
    sends = inputs.get("communication") or 0.0
    if inputs["devices"] == 1 or not group or not 1 <= group[-1] < len(inputs["costs"]):
        return 0.0
    return float(sends[group[-1] - 1] if hasattr(sends, "__len__") else sends)


def _show_partition(cut: Partition, inputs: Mapping[str, Any], console: Any) -> dict[str, Any]:
    """Print the best cut, drawn and counted; as JSON holds it."""
    chunks, layers = cut.stages // cut.devices, len(cut.costs)
    cuts = count_contiguous_splits(layers, cut.stages)
    crossings = sum(a != b for a, b in pairwise(cut.place))
    each = f", {chunks} chunks on each" if chunks > 1 else ""
    of = f"the best of {cuts:,} contiguous cuts" if cuts > 1 else "the only contiguous cut"
    answer = " | ".join(layer_ranges([n + 1 for n in group]) for group in cut.layers)
    devices = f"{cut.devices} device{'s' * (cut.devices > 1)}"
    what = "device" if chunks == 1 else "chunk"
    sizes = ", ".join(map(str, cut.sizes[:ROWS])) + ", ..." * (cut.stages > ROWS)
    lines = [
        f"{layers} layers on {devices}{each}, {of}:\n  {answer}\n",
        cut_text(inputs, answer),
        f"\nlayers of each {what}: {sizes}",
        f"bottleneck, the time of the slowest {what}: {cut.bottleneck:g}",
    ]
    if chunks > 1:
        times = ", ".join(f"{time:g}" for time in cut.device_times[:ROWS])
        lines.append(f"all chunks of each device: {times}")
    if inputs["memory"]:
        lines.append(f"memory of each device: {_memory(cut, inputs)}")
    lines.append(f"the activations change device {crossings} time{'s' * (crossings != 1)}")
    for line in lines:
        say(console, line)
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
    return ", ".join(each[:ROWS])


def _show_verdict(
    verdict: Verdict, answer: str, inputs: Mapping[str, Any], console: Any
) -> dict[str, Any]:
    """Print what a judged answer is worth; of a wrong one the rule that it breaks, and no best."""
    say(console, f"{cut_text(inputs, answer)}\n")
    words = ("legal, and a better cut exists" if verdict else verdict.rule) + ": "
    if verdict.best:
        words = "right, no contiguous cut is better: "
    say(console, verdict.reason, bold=words, colour="green" if verdict else "red", wrap=True)
    names = ["ok", "rule", "reason", "crossings", "bottleneck", "times"]
    names += ["best", "optimum"] if verdict else []
    return {name: getattr(verdict, name) for name in names}
