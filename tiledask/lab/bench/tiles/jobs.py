"""What is measured by the bench of tiles, and who computes it, the most important first."""

from dataclasses import dataclass

from tiledask.lab.bench.tiles.rounds import Work
from tiledask.lab.bench.tiles.ways import TORCH, TRITON

__all__ = ["JOBS", "Job"]


@dataclass(frozen=True)
class Job:
    """One table's worth of work: some products, and who computes them."""

    works: tuple[Work, ...]
    names: tuple[str, ...] = ()
    """Contenders besides the library: kernels, "torch", "Triton"."""
    workers: tuple[int, ...] = ()
    """If given, the two-level product over so many."""


def _cubed(n: int, precision: str) -> tuple[Work, ...]:
    return (Work(n, n, n, precision),)


def _layouts(n: int, precision: str) -> tuple[Work, ...]:
    """The first of the four is the product that others measure too."""
    return tuple(Work(n, n, n, precision, orders) for orders in ("CF", "FC", "FF"))


_TENSOR = ("wgmma_ws_persistent", "mma_multistage", TORCH, TRITON)
JOBS: dict[str, tuple[Job, ...]] = {
    "cupy": (
        Job(_cubed(4096, "bf16"), _TENSOR),
        Job(_cubed(8192, "bf16"), _TENSOR),
        Job(_cubed(4096, "fp32"), ("sgemm_warptiled", "smem_tiled", TORCH)),
        Job(_cubed(4096, "tf32"), ("mma_multistage", TORCH)),
        Job(_cubed(16384, "bf16"), ("wgmma_ws_persistent", TORCH, TRITON)),
        Job((Work(4096, 16384, 4096, "bf16"),), ("wgmma_ws_persistent", TORCH, TRITON)),
        Job(_cubed(32768, "bf16"), workers=(1, 2, 4)),
        Job(_layouts(8192, "bf16"), _TENSOR),
        Job(_cubed(8192, "fp32"), ("sgemm_warptiled", TORCH)),
        Job(_cubed(8192, "tf32"), ("mma_multistage", TORCH)),
    ),
    "numpy": (
        Job(_cubed(512, "fp32"), ("tiled", "blas")),
        Job((Work(384, 1024, 256, "fp32"),), ("tiled", "blas")),
        Job(_cubed(1024, "fp32"), workers=(1, 2)),
        Job(_layouts(512, "fp32"), ("tiled", "blas")),
    ),
}
"""What is measured on CuPy's arrays and on NumPy's, the most important first."""
