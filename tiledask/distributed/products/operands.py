"""What two operands of a product must have in common, wherever they live."""

from typing import Any

from tiledask.errors import KernelError, PlacementError
from tiledask.tile import kernels
from tiledask.tile.table import lookup

__all__ = ["check_kernel", "check_types"]


def check_kernel(kernel: str, arrays: str) -> None:
    """None if ``kernel`` multiplies ``arrays``, "numpy" or "cupy", which is what the workers hold.

    Whether their GPUs are new enough for it only they can say, and they do at the first product.
    Raises KernelError otherwise, and for an unknown kernel.
    """
    takes = lookup(kernel).arrays
    if takes == arrays or kernel == "blas":
        return
    others = [name for name, info in kernels.items() if info.arrays == arrays]
    runs, lie, device = "GPUs", "NumPy arrays on CPUs", "gpu"
    if takes == "numpy":
        runs, lie, device, others = "CPUs", "CuPy arrays on GPUs", "cpu", [*others, "blas"]
    raise KernelError(
        f"kernel {kernel!r} runs on {runs}, and the blocks are {lie}; use one of "
        f"{', '.join(others)}, or workers of td.start_cluster(device={device!r})"
    )


def check_types(
    a: Any, b: Any, kernel: str, names: tuple[str, str] = ("A", "B"), convert: str = "convert"
) -> None:
    """None if ``a`` and ``b``, the types of two arrays, are one that ``kernel`` takes.

    Raises PlacementError, which calls them by ``names`` and says how to ``convert`` one, and
    KernelError for an unknown kernel.
    """
    x, y = names
    if a != b:
        raise PlacementError(
            f"{x} is {a} and {y} is {b}, they must be equal; {convert} one with astype"
        )
    found = lookup(kernel)
    takes = found.dtypes
    if a.name not in takes:
        others = [
            repr(name)
            for name, info in kernels.items()
            if a.name in info.dtypes and info.arrays == found.arrays
        ]
        raise PlacementError(
            f"the kernel {kernel!r} takes {', '.join(takes)}, {x} and {y} are {a}; use "
            f"kernel={' or '.join(others) or 'another'}, or {convert} them with astype"
        )
