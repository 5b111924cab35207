"""Contests of the bench of tiles: what is measured and who computes it, most important first."""

from dataclasses import dataclass

from tiledask.lab.bench.tiles.rounds import Gemm
from tiledask.lab.bench.tiles.ways import TORCH, TRITON

__all__ = ["JOBS", "TENSOR", "Contest"]


@dataclass(frozen=True)
class Contest:
    """One table's worth of work: some products, and who computes them."""

    works: tuple[Gemm, ...]
    names: tuple[str, ...] = ()
    """Contenders besides the library: kernels, "torch", "Triton"."""
    workers: tuple[int, ...] = ()
    """If given, the two-level product over so many."""


def _cubed(n: int, precision: str) -> tuple[Gemm, ...]:
    return (Gemm(n, n, n, precision),)


def _layouts(n: int, precision: str) -> tuple[Gemm, ...]:
    """The first of the four is the product that others measure too."""
    return tuple(Gemm(n, n, n, precision, orders) for orders in ("CF", "FC", "FF"))


TENSOR = ("wgmma_ws_persistent", "mma_multistage", TORCH, TRITON)
JOBS: dict[str, tuple[Contest, ...]] = {
    "cupy": (
        Contest(_cubed(4096, "bf16"), TENSOR),
        Contest(_cubed(8192, "bf16"), TENSOR),
        Contest(_cubed(4096, "fp32"), ("sgemm_warptiled", "smem_tiled", TORCH)),
        Contest(_cubed(4096, "tf32"), ("mma_multistage", TORCH)),
        Contest(_cubed(16384, "bf16"), ("wgmma_ws_persistent", TORCH, TRITON)),
        Contest((Gemm(4096, 16384, 4096, "bf16"),), ("wgmma_ws_persistent", TORCH, TRITON)),
        Contest((Gemm(1024, 1024, 16384, "bf16"),), ("wgmma_ws_persistent", TORCH, TRITON)),
        Contest(_cubed(32768, "bf16"), workers=(1, 2, 4)),
        Contest(_layouts(8192, "bf16"), TENSOR),
        Contest(_cubed(8192, "fp32"), ("sgemm_warptiled", TORCH)),
        Contest(_cubed(8192, "tf32"), ("mma_multistage", TORCH)),
    ),
    "numpy": (
        Contest(_cubed(512, "fp32"), ("tiled", "blas")),
        Contest((Gemm(384, 1024, 256, "fp32"),), ("tiled", "blas")),
        Contest(_cubed(1024, "fp32"), workers=(1, 2)),
        Contest(_layouts(512, "fp32"), ("tiled", "blas")),
    ),
}
"""What is measured on CuPy's arrays and on NumPy's, the most important first."""
