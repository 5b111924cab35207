"""A function per kernel: the variant that its operands call for, and its arguments.

Each gets a, b and out, checked before; launches on the device and stream in use, and does not wait.
"""

from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, array_namespace, namespace
from tiledask.tile.choice.config import config_of, hopper_tile
from tiledask.tile.cuda import build, tensor_map
from tiledask.tile.cuda.operands import MatrixLayout, address_of, layout, padded
from tiledask.tile.epilogue import Epilogue
from tiledask.tile.levels import Tile, TileTraffic, traffic

__all__ = ["mma_multistage", "sgemm_warptiled", "smem_tiled", "wgmma_ws_persistent"]

_MAX_EXTENT = 2**31 - 512
"""Rows and columns are 32-bit ints on the device, and the last tile may end some beyond them."""
_MAX_GRID_Y = 65_535
"""Blocks in the grid's y direction (CUDA C++ Programming Guide, table of capabilities)."""
_PLANS = 4096
_TYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "float"}
_NULL = np.uint64(0)


def smem_tiled(a: Array, b: Array, out: Array, tile: Tile, epilogue: Epilogue) -> TileTraffic:
    """The textbook kernel; operands and C of any strides."""
    return _run("smem_tiled", a, b, out, False, tile, epilogue)


def sgemm_warptiled(a: Array, b: Array, out: Array, tile: Tile, epilogue: Epilogue) -> TileTraffic:
    """float32 on CUDA cores."""
    return _run("sgemm_warptiled", *_by_rows(a, b, out), tile, epilogue)


def mma_multistage(a: Array, b: Array, out: Array, tile: Tile, epilogue: Epilogue) -> TileTraffic:
    """Halves on a warp's tensor cores, 64 bytes of k at a time."""
    return _run("mma_multistage", *_by_rows(a, b, out), tile, epilogue)


def wgmma_ws_persistent(
    a: Array, b: Array, out: Array, tile: Tile | None, epilogue: Epilogue
) -> TileTraffic:
    """Halves on Hopper's tensor cores, tiles brought by its copy engine.

    A tile that is not given is chosen by the count of tiles (`hopper_tile`). C leaves through
    shared memory where its rows start and end on boundaries of 16 bytes and it is of the operands'
    type and neither read nor wanted before the activation; else by pairs, or one by one.
    """
    return _run("wgmma_ws_persistent", *_by_rows(a, b, out), tile, epilogue)


def _by_rows(a: Array, b: Array, out: Array) -> tuple[Array, Array, Array, bool]:
    """(a, b, c, False), or the transposed product (b^T, a^T, c^T, True) if C's columns lie
    together: threads that are neighbours write neighbours of a row.

    An operand whose lines of elements do not all start on boundaries of 16 bytes is copied.
    """
    x, y, c = padded(a), padded(b), layout(out)
    if c.by_rows or not c.by_columns:
        return x, y, out, False
    return y.T, x.T, out.T, True


# -- a launch: a plan of all but addresses, kept, as many are alike --------------------------------


class _Ending(NamedTuple):
    """What there is of the epilogue."""

    beta: bool
    bias: bool
    gelu: bool
    before: int  # 0, or the boundary on which every line of what goes there starts
    turned: bool  # Whether the bias, of C's columns, is one of rows of the transposed product

    def macros(self, c: MatrixLayout) -> dict[str, Any]:
        """The parts that a variant of a kernel needs to have, and whether C, and what goes beside
        it, moves by two neighbours of a row (epilogue.cuh)."""
        boundary = min(c.boundary, self.before or 16)
        return {
            "PAIRS": int(c.by_rows and c.columns % 2 == 0 and boundary >= 2 * c.itemsize),
            "HAS_BETA": int(self.beta),
            "HAS_BIAS": int(self.bias),
            "HAS_GELU": int(self.gelu),
            "HAS_BEFORE": int(self.before > 0),
            "BIAS_BY_ROW": int(self.bias and self.turned),
        }


_Box = tuple[tuple[int, int, int], tuple[int, int], tuple[int, int, int]]
"""Of a tensor map: elements along a line, of lines, one matrix; bytes from line to line and beyond
the matrix; elements of a box."""


class _Plan(NamedTuple):
    """A variant of a kernel and its launch."""

    macros: dict[str, Any]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    loads: Tile
    """What is loaded together. Edges are guarded in the kernels, so that a row of A is loaded once
    per column of such tiles, a column of B once per row of them."""
    maps: tuple[_Box | None, ...] = ()
    """What the tensor maps of A, B and C are made of; None for C where it is not brought."""


def _run(
    name: str, a: Array, b: Array, c: Array, turned: bool, tile: Tile | None, epilogue: Epilogue
) -> TileTraffic:
    x, y, z = map(layout, (a, b, c))
    before, boundary, bias = epilogue.preactivation, 0, epilogue.bias
    if before is not None:
        before = before.T if turned else before
        lies = layout(before)
        boundary = lies.boundary
        if lies[4:6] != z[4:6]:
            raise KernelError(
                f"on a GPU preactivation must lie as out does, strides of {z[4:6]} elements, got "
                f"{lies[4:6]}; make it with cupy.empty_like(out)"
            )
    has_bias, gelu = bias is not None, epilogue.activation is not None
    ending = _Ending(epilogue.loads_c, has_bias, gelu, boundary, turned)
    plan = _plan(name, x, y, z, tile, ending, _multiprocessors() if name.startswith("wgmma") else 0)
    if plan.maps:
        maps = [
            box and tensor_map.encode(lies.dtype, address_of(each), *box)
            for each, lies, box in zip((a, b, c), (x, y, z), plan.maps, strict=True)
        ]
        # C's is not read where it is not brought, but on its boundary
        inputs: list[Any] = [*maps[:2], maps[0] if maps[2] is None else maps[2]]
    else:
        inputs = [a, *_strides(x), b, *_strides(y)]
    if bias is not None and bias.strides[0] != bias.itemsize:
        bias = array_namespace(bias).ascontiguousarray(bias)
    arguments = (
        *map(np.int32, (z.rows, z.columns, x.columns)),
        *inputs,
        c,
        _NULL if before is None else before,
        *_strides(z),
        np.float32(epilogue.alpha),
        np.float32(epilogue.beta),
        _NULL if bias is None else bias,
    )
    kernel = _kernel(name, plan.macros, plan.shared)
    kernel(plan.grid, plan.block, arguments, shared_mem=plan.shared)
    # of the product as it is launched: where C lies by columns, A is what was B, transposed
    return _traffic(z.rows, z.columns, x.columns, plan.loads, x.itemsize, ending.beta, z.itemsize)


def _strides(x: MatrixLayout) -> tuple[np.int64, np.int64]:
    return np.int64(x.row), np.int64(x.column)


_traffic = lru_cache(_PLANS)(traffic)


@lru_cache(_PLANS)
def _plan(
    name: str,
    a: MatrixLayout,
    b: MatrixLayout,
    c: MatrixLayout,
    tile: Tile | None,
    ending: _Ending,
    multiprocessors: int,
) -> _Plan:
    m, k, n = a.rows, a.columns, b.columns
    if max(m, n, k) > _MAX_EXTENT:
        raise KernelError(
            f"{name} counts rows and columns in 32 bits, up to {_MAX_EXTENT}, got {m} x {k} by "
            f"{k} x {n}; cut the product into blocks or use kernel='cublas'"
        )
    macros = ending.macros(c)
    if name == "wgmma_ws_persistent":
        return _hopper_plan(a, b, c, tile, ending, multiprocessors, macros)
    assert tile is not None  # only that kernel chooses one by the product
    rows, columns, depth = tile
    across, down = -(-n // columns), -(-m // rows)
    if name == "smem_tiled":
        if down > _MAX_GRID_Y:
            raise KernelError(
                f"smem_tiled has a row of thread blocks per {rows} rows, {_MAX_GRID_Y} at most: "
                f"at most {_MAX_GRID_Y * rows} rows, got {m}; cut the product into blocks or use "
                f"kernel='cublas'"
            )
        del macros["PAIRS"]  # its threads move single elements
        return _Plan({"TILE": rows} | macros, (across, down), (rows, rows), 0, tile)
    config = config_of(name, a.dtype, tile)
    macros |= _lies(a, b, c) | {"TILE_M": rows, "TILE_N": columns, "TILE_K": depth}
    macros["STAGES"] = config.stages
    return _Plan(macros, (across * down,), (config.threads,), config.shared_bytes, tile)


def _lies(a: MatrixLayout, b: MatrixLayout, c: MatrixLayout) -> dict[str, Any]:
    """The types of A, B and C, and whether A is contiguous along m, B along n."""
    turned = {"A_TURNED": int(not a.by_rows), "B_TURNED": int(b.by_rows)}
    return {"TYPE": _TYPES[a.dtype], "OUT": _TYPES[c.dtype], **turned}


def _hopper_plan(
    a: MatrixLayout,
    b: MatrixLayout,
    c: MatrixLayout,
    tile: Tile | None,
    ending: _Ending,
    multiprocessors: int,
    macros: dict[str, Any],
) -> _Plan:
    # the copy engine writes whole 16 bytes, beyond the last column too if that ends between them
    whole = c.by_rows and c.boundary == 16 and c.columns * c.itemsize % 16 == 0
    staged = whole and c.dtype == a.dtype and not (ending.beta or ending.before)
    config = hopper_tile(c.rows, c.columns, a.columns, multiprocessors, staged, tile)
    columns, cluster = config.block[1], config.cluster
    # a cluster's tile: what it loads of B leaves L2 once, and the copy engine writes it into the
    # shared memory of both blocks; each loads its own of A; boxes end at the matrices' edges
    together = (128 * cluster, columns, 64)
    clusters = -(-c.rows // together[0]) * -(-c.columns // columns)
    blocks = min(clusters, max(1, multiprocessors // cluster)) * cluster
    macros |= _lies(a, b, c) | {"TILE_N": columns, "STAGES": config.stages}
    macros |= {"CLUSTER": cluster, "STAGED": int(staged)}
    maps = (
        _box(a, (64, 128, 1) if a.by_rows else (64, 64, 1)),
        _box(b, (64, 64, 1) if b.by_rows else (64, columns // cluster, 1)),
        _box(c, (64, 64, 1)) if staged else None,
    )
    return _Plan(macros, (blocks,), (config.threads,), config.shared_bytes, together, maps)


def _box(x: MatrixLayout, box: tuple[int, int, int]) -> _Box:
    length, lines = (x.columns, x.rows) if x.by_rows else (x.rows, x.columns)
    across = (x.row if x.by_rows else x.column) * x.itemsize
    return (length, lines, 1), (across, -(-lines * across // 16) * 16), box


# -- the device in use ----------------------------------------------------------------------------


def _kernel(name: str, macros: dict[str, Any], shared: int) -> Any:
    """The kernel on the device in use, allowed this much dynamic shared memory."""
    device = _device()
    return _ready(name, tuple(macros.items()), shared, device.id, device.compute_capability)


@cache
def _ready(
    name: str, macros: tuple[tuple[str, Any], ...], shared: int, device: int, capability: str
) -> Any:
    """A kernel is one object for all devices, but what it is allowed is said on each, once."""
    kernel = build.loaded(name, dict(macros), capability)
    if shared > 48 * 1024:
        kernel.max_dynamic_shared_size_bytes = shared
    return kernel


def _multiprocessors() -> int:
    count: int = _device().attributes["MultiProcessorCount"]
    return count


def _device() -> Any:
    return namespace("cupy").cuda.Device()
