"""`tiledask fit 26GB 4x24GB`: one weight, and which splits of it fit on the devices."""

from typing import Any

from tiledask.lab.table import Grid, say
from tiledask.plan.fitting.overhead import CUDA_CONTEXT
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.units import divisors, format_bytes

__all__ = ["run"]

TRAINED = {
    "fp32-sgd": "SGD",
    "fp32-momentum": "momentum",
    "fp32-adam": "Adam",
}
"""Recipe -> what is kept of every number beside the weight, of four bytes each."""
MOST_SPLITS = 6


def run(weight: int, cluster: Any, console: Any) -> tuple[int, Any]:
    """A row for each split of the weight, then for what training keeps beside it."""
    capacity, devices = cluster.device.memory_bytes, cluster.devices
    room = max(0, capacity - CUDA_CONTEXT)

    def row(split: str, kept: str, whole: int, over: int, by_more: bool = True) -> dict[str, Any]:
        held = -(-whole // over)
        fewest = -(-whole // room) if room and by_more else None
        return {
            "split": split,
            "keeps": kept,
            "bytes": held,
            "fits": held <= room,
            "fewest": 1 if whole <= room else fewest,
        }

    several = devices > 1
    rows = [row("data parallel: copies", "the weight", weight, 1, False)] * several
    rows += [row("pipeline: it is one layer", "the weight", weight, 1, False)] * several
    fewest = -(-weight // room) if room else devices + 1
    overs = sorted({*divisors(devices), *([fewest] if fewest <= devices else [])} - {1})
    overs = [*overs[: MOST_SPLITS - 1], overs[-1]] if len(overs) > MOST_SPLITS else overs
    for over in overs or [1]:
        split = f"tensor parallel over {over}" if over > 1 else "whole on the one device"
        rows.append(row(split, "the weight", weight, over))
    fits = any(each["fits"] for each in rows)
    over = max(overs, default=1)
    split = rows[-1]["split"]
    for name, words in TRAINED.items():
        times = int(load_recipe(name).bytes_per_parameter) // 4
        rows.append(row(split, f"{times} x, {words}", times * weight, over))
    _show(weight, cluster, rows, console)
    facts = {"bytes": weight, "capacity": capacity, "context": CUDA_CONTEXT, "devices": devices}
    return (0 if fits else 1), {"verdict": "fits" if fits else "no", **facts, "rows": rows}


def _show(weight: int, cluster: Any, rows: list[dict[str, Any]], console: Any) -> None:
    """The table, and what training it takes."""
    room, last = format_bytes(cluster.device.memory_bytes), rows[-1]
    first = next((each for each in rows if each["fits"]), None)
    named = f"a weight of {format_bytes(weight)} on {cluster}"
    if first is not None:
        how = f"{first['split']}, {format_bytes(first['bytes'])} of {room} a device"
        say(console, f": {named}: {how}", bold="fits")
    else:
        takes = f"{rows[-4]['fewest']} devices" if rows[-4]["fewest"] else "larger ones"
        say(console, f": {named}: it takes {takes}", bold="no")
    shown = [
        (
            each["split"],
            each["keeps"],
            format_bytes(each["bytes"]),
            "fits" if each["fits"] else "no",
            "no number" if each["fewest"] is None else f"{each['fewest']}",
        )
        for each in rows
    ]
    head = ("split", "keeps", "a device", "", "fewest")
    title = f"of {room} a device, where a CUDA context takes {format_bytes(CUDA_CONTEXT)}"
    console.print(Grid(head, shown, title, left=(0, 1, 3)))
    if not last["fits"] and last["fewest"]:
        total = format_bytes(weight * 4)
        say(
            console,
            f"Adam in fp32 keeps {total} in all: {last['fewest']} devices, however they are cut; "
            f"ZeRO shards it over copies that each fit, and gathers the whole weight to multiply.",
            wrap=True,
        )
