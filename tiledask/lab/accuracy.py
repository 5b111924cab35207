"""Published numbers by their id, and what was measured of kernels here."""

from functools import cache
from typing import Any

from tiledask.plan.data import shipped_json

__all__ = ["published", "records"]


@cache
def published(name: str) -> dict[str, dict[str, Any]]:
    """The cases of data/published/NAME.json by their id."""
    return {case["id"]: case for case in shipped_json("published", f"{name}.json")}


def records(gpu: str) -> dict[tuple[str, str], float]:
    """(implementation, product) -> FLOP/s that `make gpu` measured on a ``gpu``, the median of its
    rounds; what was skipped, failed or wrong has no speed.

    >>> records("H200")["wgmma_ws_persistent", "bf16 4096 cubed"] > 600e12
    True
    """
    rows = shipped_json("measured", "gpu", f"nvidia-{gpu.lower()}.json")["rows"]
    timed = (row for row in rows if row["part"] == "speed" and "TFLOP/s" in row)
    return {(row["way"], row["work"]): row["TFLOP/s"] * 1e12 for row in timed}
