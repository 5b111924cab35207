"""Speed of our kernels beside the library, and beside their own bounds."""

from dataclasses import replace

import gpu.contest
import pytest
from gpu.contest import LIBRARY, Gemm, contest
from gpu.devices import LESS, device_at_hand, on

from tiledask.tile.choice.bound import predict
from tiledask.tile.choice.config import config_of, configs

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
    *((Gemm(*mnk, "bf16"), HOPPER) for mnk in ((4096, 16384, 4096), (1024, 1024, 16384))),
    *(cubed(8192, "bf16", *TENSOR, orders=orders) for orders in ("CF", "FC", "FF")),
    # tall, wide, long, and with fewer tiles than a GPU has multiprocessors
    *((Gemm(*mnk, "bf16"), HOPPER) for mnk in ((65536, 1024, 4096), (1024, 65536, 4096))),
    *((Gemm(1024, 1024, k, "bf16"), HOPPER) for k in (65536, 1024)),
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
        way, facts = row["way"], dict(row)
        if device and way in configs:  # arithmetic knows nothing of a library's
            most = predict(work.m, work.n, work.k, config_of(way, work.dtype.name), device)
            facts |= {"predicted": most.flops_per_second, "bound by": most.binding}
        goal = GOALS.get(way)
        if work == Gemm(8192, 8192, 8192, goal) and "ratio" in row:
            facts |= {"goal": goal, "reached": row["ratio"]}
        note(f"{work}: {way}", shape=[work.m, work.n, work.k], **facts)
    assert {row["state"] for row in rows} <= {"timed", "skipped"}, rows
    assert [row["way"] for row in rows] == [LIBRARY[arrays], *names]
    for row in rows:
        if row["state"] == "timed":
            assert row["error"] <= row["error limit"]
            assert row["ratio"] == pytest.approx(rows[0]["seconds"] / row["seconds"])


def test_who_is_wrong_has_no_time(monkeypatch):
    def off_by_one_row(a, b, name, out, **how):
        matmul(a, b, name, out=out, **how)
        out[1:] = out[:-1].copy()

    matmul = gpu.contest.matmul
    monkeypatch.setattr(gpu.contest, "matmul", off_by_one_row)
    library, ours = contest(Gemm(64, 64, 64, "fp32"), ["blas"], "numpy", rounds=1)
    assert (library["state"], ours["state"]) == ("timed", "wrong")
    assert "seconds" not in ours
