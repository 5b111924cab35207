"""What two operands of a product must have in common, wherever they live."""

from typing import Any

from tiledask.errors import KernelError, PlacementError
from tiledask.tile import kernels
from tiledask.tile.table import lookup

__all__ = ["check_kernel", "check_types"]


def check_kernel(kernel: str, arrays: str) -> None:
    """Raise KernelError for an unknown kernel, and for one that does not multiply ``arrays``,
    "numpy" or "cupy", which is what the workers hold."""
    takes = lookup(kernel).arrays
    if takes == arrays or kernel == "blas":
        return
    others = ", ".join(name for name, info in kernels.items() if info.arrays == arrays)
    runs, device = {"cupy": ("GPUs", "gpu"), "numpy": ("CPUs", "cpu")}[takes]
    raise KernelError(
        f"kernel {kernel!r} runs on {runs}, and the blocks are {arrays} arrays; use one of "
        f"{others}, blas, or workers of td.start_cluster(device={device!r})"
    )


def check_types(
    a: Any, b: Any, kernel: str, names: tuple[str, str] = ("A", "B"), convert: str = "convert"
) -> None:
    """Raise PlacementError unless the types of two arrays are one that ``kernel`` takes."""
    found, (x, y) = lookup(kernel), names
    if a == b and a.name in found.dtypes:
        return
    rule = f"the kernel {kernel!r} takes {', '.join(found.dtypes)}" if a == b else "must be equal"
    raise PlacementError(f"{x} is {a} and {y} is {b}, {rule}; {convert} with astype")
