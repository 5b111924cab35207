"""`tiledask partition`: the best cut, or what an answer is worth; cuts drawn a line per device.

device 0  1-6    ████████████████ 6
device 1  7-12   ████████████████ 6
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.commands.options import Run, numbers
from tiledask.plan.splitting import partition as splits
from tiledask.plan.splitting.partition import layer_ranges

__all__ = ["cut_text", "run_partition"]

ROWS = 32
"""Devices that are drawn; the rest are counted."""
BAR = 40
"""Letters of the longest bar."""


def run_partition(args: argparse.Namespace) -> Run:
    """The best cut, or what --judge is worth: 1 where it breaks a rule, and then no best."""
    equal = args.layers.isdecimal()
    given = int(args.layers[:30]) if equal else numbers(args.layers, "costs are")
    costs = splits.layer_costs(given)
    devices, chunks = splits.count("devices", args.devices), splits.count("--chunks", args.chunks)
    if len(costs) < devices * chunks:
        pieces = f"{devices} devices" + f" x {chunks} chunks" * (chunks > 1)
        raise ConfigError(
            f"every {'chunk' if chunks > 1 else 'device'} needs a layer of its own, and "
            f"{len(costs)} layers are fewer than {pieces}; use at most {len(costs) // chunks} "
            f"devices"
        )
    speeds = numbers(args.speeds, "speeds are") if args.speeds else None
    inputs: dict[str, Any] = {"chunks": chunks, "speeds": speeds}
    drawn = inputs | {"costs": costs, "devices": devices}
    result: dict[str, Any] = {"layers": len(costs), "devices": devices, "chunks": chunks}
    code = 0
    if args.judge:
        verdict = td.judge(args.judge, devices=devices, costs=costs, **inputs)
        yield f"{cut_text(drawn, args.judge)}\n"
        words = ("legal, and a better cut exists" if verdict else verdict.rule) + ": "
        yield "right, no contiguous cut is better: " if verdict.best else words, verdict.reason
        names = ["ok", "rule", "reason", "crossings", "bottleneck", "times"]
        names += ["best", "optimum"] if verdict else []
        result |= {name: getattr(verdict, name) for name in names}
        code = 0 if verdict else 1
    if not args.judge or args.solution:
        cut = td.partition(costs, devices * chunks, **inputs)
        cuts = math.comb(len(costs) - 1, cut.stages - 1)
        crossings = sum(a != b for a, b in pairwise(cut.place))
        each = f", {chunks} chunks on each" if chunks > 1 else ""
        of = f"the best of {cuts:,} contiguous cuts" if cuts > 1 else "the only contiguous cut"
        answer = " | ".join(layer_ranges([n + 1 for n in group]) for group in cut.layers)
        places = f"{devices} device{'s' * (devices > 1)}{each}"
        yield f"{len(costs)} layers on {places}, {of}:\n  {answer}\n"
        yield cut_text(drawn, answer)
        what = "device" if chunks == 1 else "chunk"
        yield f"\nbottleneck, the time of the slowest {what}: {cut.bottleneck:g}"
        yield f"the activations change device {crossings} time{'s' * (crossings != 1)}"
        names = ["bounds", "sizes", "bottleneck", "place", "times", "device_times"]
        facts = {"layers": len(costs), "devices": cut.devices, "chunks": chunks}
        facts |= {name: getattr(cut, name) for name in names}
        facts |= {"crossings": crossings, "cuts": cuts}
        result |= {"solution": facts} if args.judge else facts
    return code, result


def cut_text(inputs: Mapping[str, Any], answer: Any) -> str:
    """An answer to "which layers on which device" in letters, right or wrong.

    ``inputs`` are those of a partition puzzle: costs and devices, perhaps speeds, chunks and
    communication.

    >>> print(cut_text({"costs": [1, 1, 2], "devices": 2}, "1-2 | 3"))
    device 0  1-2  ████████████████████████████████████████ 2
    device 1    3  ████████████████████████████████████████ 2
    """
    devices, chunks, costs = inputs["devices"], inputs.get("chunks", 1), inputs["costs"]
    speeds: Sequence[float] = inputs.get("speeds") or [1.0] * devices
    sends: Any = inputs.get("communication") or 0.0
    groups = splits.read_assignment(answer, len(costs), devices * chunks)
    stages = splits.stages_of(groups, devices, chunks)
    if sum(map(len, stages)) > 20 * len(costs):
        return ""
    rows = []
    for s, group in enumerate(stages):
        name = splits.stage_name(s, devices, chunks)
        name = name if s < devices * chunks else f"no {name}"
        work = math.fsum(costs[n - 1] if 1 <= n <= len(costs) else 1.0 for n in group)
        time = work / speeds[s % devices]
        if devices > 1 and group and 1 <= group[-1] < len(costs):  # sends after its last layer
            time += sends[group[-1] - 1] if hasattr(sends, "__len__") else sends
        rows.append((name, layer_ranges(group) or "no layer", time))
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    unit = BAR / (max(time for *_, time in rows) or 1)
    lines = [
        f"{name:{first}}  {layers:>{second}}  {'█' * round(time * unit)} {time:g}"
        for name, layers, time in rows[:ROWS]
    ]
    return "\n".join(lines + [f"and {len(rows) - ROWS} more"] * (len(rows) > ROWS))
