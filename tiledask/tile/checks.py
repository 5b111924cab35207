"""Checks of the operands, the output and the epilogue of one product."""

from numbers import Real
from types import ModuleType

from tiledask.errors import KernelError
from tiledask.tile import backend
from tiledask.tile.backend import Array
from tiledask.tile.cuda.hopper_tile import WGMMA_TILES, AnyTile, HopperTile, as_tile
from tiledask.tile.epilogue import ACTIVATIONS, Epilogue
from tiledask.tile.kernel import Kernel, Run, unsuited
from tiledask.tile.table import kernels

__all__ = [
    "batch_of",
    "check_activation",
    "check_device",
    "check_epilogue",
    "check_out",
    "check_shapes",
    "checked_tile",
    "number",
    "run_of",
]

_LOOPS_LIMIT = 2**24
"""Multiplications that kernel "loops" accepts: about a second of Python."""


def number(name: str, x: Array) -> float:
    """``x``, the argument ``name``, as a float."""
    if type(x) is not float and not isinstance(x, Real):
        raise KernelError(f"{name} must be a real number, got {type(x).__name__} {x!r}")
    return float(x)


def batch_of(a: Array, b: Array) -> tuple[int, ...]:
    """(products,) of a batch, () of one product."""
    found: tuple[int, ...] = a.shape[:-2] or b.shape[:-2]
    return found


def check_shapes(a: Array, b: Array) -> None:
    """None if a [m, k] and b [k, n], or batches of them, multiply."""
    if not {a.ndim, b.ndim} <= {2, 3}:
        raise KernelError(
            f"a and b are matrices of 2 dimensions, or 3 with a batch in front, got {a.ndim} and "
            f"{b.ndim}; reshape them"
        )
    if a.ndim == b.ndim == 3 and len(a) != len(b):
        raise KernelError(
            f"a and b of a batch must be as many, got {len(a)} and {len(b)}, {_by(a)} @ {_by(b)}; "
            f"what all products share has 2 dimensions"
        )
    if a.shape[-1] != b.shape[-2]:
        raise KernelError(
            f"the columns of a must be as many as the rows of b, got {_by(a)} @ {_by(b)}: "
            f"{a.shape[-1]} against {b.shape[-2]}; transpose or reshape one"
        )
    if 0 in (*a.shape, *b.shape):
        raise KernelError(f"all extents must be 1 or more, got {_by(a)} @ {_by(b)}")


def run_of(a: Array, b: Array, kernel: Kernel, precision: str | None) -> Run:
    """What multiplies a and b: a kernel has another function for float32 as TF32."""
    if a.dtype != b.dtype:
        raise KernelError(
            f"a and b must have one element type, got {a.dtype} and {b.dtype}; "
            f"cast one with .astype"
        )
    if precision is not None:
        if precision != "tf32":
            raise KernelError(f"precision must be None or 'tf32', got {precision!r}")
        if a.dtype.name != "float32" or not a.dtype.isnative:
            raise KernelError(
                f"precision='tf32' rounds float32 operands, got {a.dtype}; leave it out, or cast "
                f"with .astype"
            )
        if kernel.tf32 is None:
            others = [each for each, info in kernels.items() if info.tf32]
            raise KernelError(
                f"precision='tf32' leaves 10 of the 23 bits of mantissa, and kernel "
                f"{kernel.name!r} has no such product; leave it out, or use one of "
                f"{', '.join(others)} (CuPy arrays)"
            )
        return kernel.tf32
    name = backend.name_of(a.dtype)
    if name == "float32" and "float32" not in kernel.dtypes and kernel.tf32:
        raise KernelError(
            f"kernel {kernel.name!r} takes float32 as TF32 only, of whose 23 bits of mantissa 10 "
            f"remain; if that will do say precision='tf32', or else use kernel='blas'"
        )
    if name not in kernel.dtypes or not a.dtype.isnative:
        raise KernelError(
            f"kernel {kernel.name!r} takes {', '.join(kernel.dtypes)}, got {a.dtype}; cast with "
            f".astype" + (" or use kernel='blas'" if name in backend.HALVES else "")
        )
    return kernel.run


def check_device(a: Array, b: Array, kernel: Kernel) -> None:
    """None if a and b are together on a device that ``kernel`` runs on, and not too much for it."""
    if a.device != b.device:
        raise KernelError(f"a and b must be on one device, got {a.device} and {b.device}")
    if kernel.capability is not None:  # of several GPUs it may be another that the kernel is for
        here = a.device.id
        devices = tuple([d for d in backend.probe().devices if d.index == here])
        if why_not := unsuited(kernel, devices):
            raise KernelError(f"kernel {kernel.name!r} cannot run where a is: {why_not}")
    work = (*batch_of(a, b), 1)[0] * a.shape[-2] * a.shape[-1] * b.shape[-1]
    if kernel.name == "loops" and work > _LOOPS_LIMIT:
        raise KernelError(
            f"kernel 'loops' is a reference for up to {_LOOPS_LIMIT} multiplications, got {work}; "
            f"use kernel='tiled' or 'blas'"
        )


def check_epilogue(
    a: Array,
    b: Array,
    out: Array | None,
    epilogue: Epilogue,
    shape: tuple[int, ...],
    xp: ModuleType,
) -> None:
    """None if ``epilogue`` goes with a, b and an ``out`` of ``shape``; None for a new one."""
    check_activation(epilogue.activation)
    bias, before = epilogue.bias, epilogue.preactivation
    if bias is not None:
        _check_type("bias", bias, a, shape[-1:], xp)
        if bias.device != a.device:
            raise KernelError(f"bias must be where a is, {a.device}, got {bias.device}")
        if out is not None and _overlap(bias, out, xp):
            raise KernelError("out must not overlap the bias, which is still read; copy one")
    if before is not None:
        if epilogue.activation is None:
            raise KernelError(
                f"preactivation= is what the activation is applied to, and there is none, so that "
                f"out would be the same; leave it out, or give one of {', '.join(ACTIVATIONS)}"
            )
        others = {"a": a, "b": b, "out": out, "bias": bias}
        check_out("preactivation", before, a, shape, xp, others)


def check_activation(name: str | None) -> None:
    """None if there is an activation of that name, or none is asked for."""
    if name is not None and name not in ACTIVATIONS:
        raise KernelError(f"activation must be None or {', '.join(ACTIVATIONS)}, got {name!r}")


def _check_type(name: str, x: Array, a: Array, shape: tuple[int, ...], xp: ModuleType) -> None:
    wide = backend.accumulator(a.dtype)
    if x.shape != shape or x.dtype not in (a.dtype, wide):
        either = f"{a.dtype}" if wide == a.dtype else f"{a.dtype} or {wide}"
        raise KernelError(
            f"{name} must be {either} {shape}, got {x.dtype} {x.shape}; "
            f"allocate it with {xp.__name__}.empty({shape}, '{wide}')"
        )


def check_out(
    name: str,
    out: Array,
    a: Array,
    shape: tuple[int, ...],
    xp: ModuleType,
    others: dict[str, Array],
) -> None:
    """None if ``out`` can be written while ``others`` are still read or written."""
    _check_type(name, out, a, shape, xp)
    if out.device != a.device:
        raise KernelError(f"{name} must be where a is, {a.device}, got {out.device}")
    if xp.__name__ == "numpy" and not out.flags.writeable:
        raise KernelError(f"{name} must be writable, got a read-only array; pass {name}.copy()")
    if near := [other for other, x in others.items() if x is not None and _overlap(x, out, xp)]:
        raise KernelError(f"{name} must not overlap {near[0]}, which is in use; copy one")


def _overlap(x: Array, y: Array, xp: ModuleType) -> bool:
    # CuPy compares bounds only, so that it may see an overlap between two interleaved slices
    compare = xp.shares_memory if xp.__name__ == "numpy" else xp.may_share_memory
    found: bool = compare(x, y)
    return found


def checked_tile(kernel: Kernel, tile: int | AnyTile | None) -> AnyTile | None:
    """What ``kernel`` is told when ``tile`` is asked for; None where it is to choose itself."""
    if tile is None:
        return None if kernel.chooses else kernel.tile
    if isinstance(tile, HopperTile) and kernel.tiles == WGMMA_TILES:
        return tile
    if kernel.tile is None:
        raise KernelError(
            f"kernel {kernel.name!r} has no tile to choose, got tile={tile!r}; leave it out, or "
            f"use kernel='tiled' (NumPy) or 'smem_tiled' (CuPy)"
        )
    found = as_tile(tile)
    if kernel.tiles and found not in kernel.tiles:
        built = " or ".join(f"({', '.join(map(str, t))})" for t in kernel.tiles)
        raise KernelError(
            f"kernel {kernel.name!r} is built for tiles of {built}, got {found}; give one of "
            f"these, or leave it out for {kernel.tile}"
        )
    return found


def _by(x: Array) -> str:
    return "x".join(map(str, x.shape))
