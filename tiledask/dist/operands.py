"""What two operands of a product must have in common, wherever they live."""

from typing import Any

from tiledask.errors import PlacementError
from tiledask.tile import kernels
from tiledask.tile.table import lookup

__all__ = ["check_types"]


def check_types(
    a: Any, b: Any, kernel: str, names: tuple[str, str] = ("A", "B"), convert: str = "convert"
) -> None:
    """None if ``a`` and ``b`` are of one type that ``kernel`` takes.

    Raises PlacementError, which calls them by ``names`` and says how to ``convert`` one, and
    KernelError for an unknown kernel.
    """
    x, y = names
    if a.dtype != b.dtype:
        raise PlacementError(
            f"{x} is {a.dtype} and {y} is {b.dtype}, they must be equal; {convert} one with astype"
        )
    takes = lookup(kernel).dtypes
    if a.dtype.name not in takes:
        others = [repr(name) for name, info in kernels.items() if a.dtype.name in info.dtypes]
        raise PlacementError(
            f"the kernel {kernel!r} takes {', '.join(takes)}, {x} and {y} are {a.dtype}; use "
            f"kernel={' or '.join(others) or 'another'}, or {convert} them with astype"
        )
