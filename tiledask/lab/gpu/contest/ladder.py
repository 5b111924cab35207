"""The ladder of kernels: each step's bound and speed, and what it gains on the one before."""

from collections.abc import Mapping, Sequence
from typing import Any

from tiledask.plan.inputs.hardware import Device
from tiledask.tile.choice import Prediction, config_of, predict

__all__ = ["LADDER", "ladder", "predictions"]

LADDER = {
    "cupy": (
        ("smem_tiled", "fp32"),
        ("sgemm_warptiled", "fp32"),
        ("mma_multistage", "tf32"),
        ("mma_multistage", "bf16"),
        ("wgmma_ws_persistent", "bf16"),
    ),
    "numpy": (("tiled", "fp32"), ("blas", "fp32")),
}
"""(kernel, precision), each a step above the one before."""


def predictions(n: int, device: Device | None, arrays: str) -> dict[tuple[str, str], Prediction]:
    """(kernel, precision) -> the bound of a product of n cubed, for what ``device`` can run."""
    if device is None:
        return {}
    found = {}
    for kernel, precision in LADDER[arrays]:
        config = config_of(kernel, "bfloat16" if precision == "bf16" else "float32")
        try:
            found[kernel, precision] = predict(n, n, n, config, device)
        except ValueError:  # the device cannot run it; the contest says why
            continue
    return found


def ladder(
    rows: Sequence[dict[str, Any]],
    bounds: Mapping[tuple[str, str], Prediction],
    n: int,
    arrays: str,
) -> list[dict[str, Any]]:
    """A step per kernel: FLOP/s at most as predicted, and measured; None where there is none."""
    steps = []
    for kernel, precision in LADDER[arrays]:
        bound = bounds.get((kernel, precision))
        here = [
            row["TFLOP/s"] * 1e12
            for row in rows
            if row["state"] == "timed"
            and (row["way"], row["precision"], row["orders"]) == (kernel, precision, "CC")
            and row["m"] == row["n"] == row["k"] == n
        ]
        steps.append(
            {
                "kernel": kernel,
                "precision": precision,
                "n": n,
                "predicted": bound and bound.flops_per_second,
                "bound by": bound and bound.binding,
                "measured": here[0] if here else None,
            }
        )
    return steps
