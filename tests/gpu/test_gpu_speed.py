"""Speed of our kernels beside the library, and beside their own bounds."""

from dataclasses import replace

import pytest
from gpu.contest import LIBRARY, Gemm, contest
from gpu.devices import LESS, device_at_hand, on

from tiledask.tile.choice.bound import predict
from tiledask.tile.choice.config import config_of

HOPPER, TENSOR = ("wgmma_ws_persistent",), ("wgmma_ws_persistent", "mma_multistage")
GOALS = {"wgmma_ws_persistent": "bf16", "sgemm_warptiled": "fp32"}
"""Kernel -> its goal at 8192 cubed, in the precision of that name."""


def cubed(n, precision, *names, orders="CC"):
    return Gemm(n, n, n, precision, orders), names


PRODUCTS = [
    cubed(4096, "bf16", *TENSOR),
    cubed(8192, "bf16", *TENSOR),
    cubed(4096, "fp32", "sgemm_warptiled", "smem_tiled"),
    cubed(8192, "fp32", "sgemm_warptiled"),
    cubed(16384, "bf16", *HOPPER),
    (Gemm(4096, 16384, 4096, "bf16"), HOPPER),
    (Gemm(1024, 1024, 16384, "bf16"), HOPPER),
    *(cubed(8192, "bf16", *TENSOR, orders=orders) for orders in ("CF", "FC", "FF")),
    cubed(8192, "fp16", *TENSOR),
    # tall, wide, long, and with fewer tiles than a GPU has multiprocessors
    (Gemm(65536, 1024, 4096, "bf16"), HOPPER),
    (Gemm(1024, 65536, 4096, "bf16"), HOPPER),
    (Gemm(1024, 1024, 65536, "bf16"), HOPPER),
    cubed(1024, "bf16", *HOPPER),
]
"""The most important first."""
SMALL = [
    cubed(8192, "fp32", "tiled", "blas", orders="CF"),
    (Gemm(4096, 16384, 4096, "fp32"), ("tiled", "blas")),
]


@pytest.mark.parametrize(("arrays", "work", "names"), on(PRODUCTS, SMALL), ids=str)
def test_products(note, arrays, work, names):
    less = LESS[arrays]
    work = replace(work, m=work.m // less, n=work.n // less, k=work.k // less)
    rows = contest(work, names, arrays, rounds=15 if arrays == "cupy" else 3)
    device = device_at_hand() if arrays == "cupy" else None
    for row in rows:
        facts = {**row, **bound(work, row["way"], device)}
        goal = GOALS.get(row["way"])
        if work == Gemm(8192, 8192, 8192, goal) and "ratio" in row:
            facts |= {"goal": goal, "reached": row["ratio"]}
        note(f"{work}: {row['way']}", shape=[work.m, work.n, work.k], **facts)
    assert {row["state"] for row in rows} <= {"timed", "skipped"}, rows
    assert [row["way"] for row in rows] == [LIBRARY[arrays], *names]
    for row in rows:
        if row["state"] == "timed":
            assert row["error"] <= row["error limit"]
            assert row["ratio"] == pytest.approx(rows[0]["seconds"] / row["seconds"])


def bound(work, kernel, device):
    """FLOP/s at most, and what binds; nothing of kernels that arithmetic does not know."""
    if device is None or (kernel not in GOALS and kernel not in ("smem_tiled", "mma_multistage")):
        return {}
    found = predict(work.m, work.n, work.k, config_of(kernel, work.dtype.name), device)
    return {"predicted": found.flops_per_second, "bound by": found.binding}


def test_who_is_wrong_has_no_time(monkeypatch):
    import gpu.contest

    def off_by_one_row(a, b, name, out, **how):
        matmul(a, b, name, out=out, **how)
        out[1:] = out[:-1].copy()

    matmul = gpu.contest.matmul
    monkeypatch.setattr(gpu.contest, "matmul", off_by_one_row)
    library, ours = contest(Gemm(64, 64, 64, "fp32"), ["blas"], "numpy", rounds=1)
    assert (library["state"], ours["state"]) == ("timed", "wrong")
    assert "seconds" not in ours
