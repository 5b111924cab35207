"""`tiledask fit 26GB 4x24GB`: one weight, and which splits of it fit on the devices."""

from typing import Any

from tiledask.lab.commands.options import Run
from tiledask.plan.fitting.overhead import CUDA_CONTEXT
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.tables import table
from tiledask.plan.units import divisors, format_bytes

__all__ = ["splits"]

TRAINED = {"fp32-sgd": "SGD", "fp32-momentum": "momentum", "fp32-adam": "Adam"}
"""Recipe -> what is kept of every number beside the weight, of four bytes each."""
MOST_SPLITS = 6


def splits(weight: int, cluster: Any) -> Run:
    """A row for each split of the weight, then for what training keeps beside it."""
    capacity, devices = cluster.device.memory_bytes, cluster.devices
    room = max(0, capacity - CUDA_CONTEXT)

    def row(split: str, kept: str, whole: int, over: int, by_more: bool = True) -> dict[str, Any]:
        held, fewest = -(-whole // over), -(-whole // room) if room and by_more else None
        facts = {"split": split, "keeps": kept, "bytes": held, "fits": held <= room}
        return facts | {"fewest": 1 if whole <= room else fewest}

    copied = ("data parallel: copies", "pipeline: it is one layer") * (devices > 1)
    rows = [row(split, "the weight", weight, 1, False) for split in copied]
    least = -(-weight // room) if room else devices + 1
    overs = sorted({*divisors(devices), *([least] if least <= devices else [])} - {1}) or [1]
    overs = [*overs[: MOST_SPLITS - 1], overs[-1]] if len(overs) > MOST_SPLITS else overs
    for over in overs:
        split = f"tensor parallel over {over}" if over > 1 else "whole on the one device"
        rows.append(row(split, "the weight", weight, over))
    first, last = next((each for each in rows if each["fits"]), None), rows[-1]
    for name, words in TRAINED.items():
        times = int(load_recipe(name).bytes_per_parameter) // 4
        rows.append(row(last["split"], f"{times} x, {words}", times * weight, overs[-1]))
    verdict = "no" if first is None else "fits"
    if first is not None:
        how = f"{first['split']}, {format_bytes(first['bytes'])} of {format_bytes(capacity)} each"
    else:
        how = f"it takes {last['fewest'] or 'larger'} devices"
    yield verdict, f": a weight of {format_bytes(weight)} on {cluster}: {how}"
    title = f"of {format_bytes(capacity)} a device, where a CUDA context takes "
    yield table(rows, title + format_bytes(CUDA_CONTEXT), bytes="bytes")
    if not rows[-1]["fits"] and rows[-1]["fewest"]:
        yield (
            f"Adam in fp32 keeps {format_bytes(weight * 4)} in all: {rows[-1]['fewest']} devices, "
            f"however they are cut; ZeRO shards it over copies that each fit, and gathers the "
            f"whole weight to multiply."
        )
    facts = {"bytes": weight, "capacity": capacity, "context": CUDA_CONTEXT, "devices": devices}
    return (1 if first is None else 0), {"verdict": verdict, **facts, "rows": rows}
