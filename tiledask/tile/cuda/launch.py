"""A function per kernel: the variant that its operands call for, and its arguments.

Each gets a, b and out, checked before; launches on the device and
stream in use, and does not wait.
"""

from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, array_namespace, namespace
from tiledask.tile.cuda import build, tensor_map
from tiledask.tile.cuda.hopper_tile import WGMMA_TILES, chosen
from tiledask.tile.cuda.operands import Matrix, MatrixLayout, address_of, matrix, padded, readable
from tiledask.tile.epilogue import Epilogue
from tiledask.tile.levels import Tile, TileTraffic, traffic

__all__ = [
    "MMA_K_BYTES",
    "MMA_TILES",
    "SGEMM_TILES",
    "SMEM_TILES",
    "WGMMA_TILES",
    "LaunchPlan",
    "mma_multistage",
    "panels_memory",
    "sgemm_warptiled",
    "smem_tiled",
    "wgmma_ws_persistent",
]

SMEM_TILES = ((16, 16, 16), (32, 32, 32))
SGEMM_TILES = ((128, 128, 32), (64, 64, 16))
MMA_TILES = ((128, 128, 32), (64, 64, 32), (128, 128, 16), (64, 64, 16))
MMA_K_BYTES = 64
"""Bytes of k at a time: 32 halves, or 16 of float32."""

_MAX_EXTENT = 2**31 - 512
"""Rows and columns are 32-bit ints on the device, and the last tile may end some beyond them."""
_MAX_GRID_Y = 65_535
"""Blocks in the grid's y direction (CUDA C++ Programming Guide, table of capabilities)."""
_PLANS = 4096
_TYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "float"}


def smem_tiled(a: Array, b: Array, out: Array, tile: Tile, epilogue: Epilogue) -> TileTraffic:
    """The textbook kernel; operands and C of any strides."""
    return _run("smem_tiled", matrix(a), matrix(b), matrix(out), False, tile, epilogue)


def sgemm_warptiled(a: Array, b: Array, out: Array, tile: Tile, epilogue: Epilogue) -> TileTraffic:
    """float32 on CUDA cores. Copies an operand whose rows and columns both lie apart."""
    return _run("sgemm_warptiled", *_by_rows(a, b, out), tile, epilogue)


def mma_multistage(
    a: Array, b: Array, out: Array, tile: Tile | None, epilogue: Epilogue
) -> TileTraffic:
    """Halves on a warp's tensor cores, or float32 rounded to TF32, of whose mantissa they read 10
    bits. Copies an operand whose rows and columns both lie apart."""
    size = a.itemsize
    tile = tile or MMA_TILES[0 if size == 2 else 2]
    if tile[2] * size != MMA_K_BYTES:
        each = MMA_K_BYTES // size
        raise KernelError(
            f"mma_multistage takes {MMA_K_BYTES} bytes of k at a time, {each} elements of {size} "
            f"bytes, got a tile of {tile[2]}; use {(*tile[:2], each)}"
        )
    return _run("mma_multistage", *_by_rows(a, b, out), tile, epilogue)


def wgmma_ws_persistent(
    a: Array, b: Array, out: Array, tile: Tile | None, epilogue: Epilogue
) -> TileTraffic:
    """Halves on Hopper's tensor cores, tiles brought by its copy engine.

    What ``tile`` does not say is chosen by the count of tiles (hopper_tile.py). Copies an operand
    whose lines of elements do not all start on boundaries of 16 bytes. C leaves through shared
    memory where its rows start and end on such boundaries and it is of the operands' type and
    neither read nor wanted before the activation; else by pairs, or one by one.
    """
    a, b, c, turned = _by_rows(a, b, out)
    a, b = padded(a), padded(b)
    before, parts = _parts(epilogue, c, turned)
    plan = _hopper_plan(a.layout, b.layout, c.layout, tile, parts, _multiprocessors())
    extents, strides = plan.numbers[:3], plan.numbers[3:]
    # C's is not read where it is not brought, but on its boundary
    pairs = zip((a, b, c), plan.maps, strict=True)
    maps = [
        box and tensor_map.encode(x.layout.dtype, address_of(x.array), *box) for x, box in pairs
    ]
    map_a, map_b, map_c = maps if maps[2] is not None else (*maps[:2], maps[0])
    _kernel(plan.name, plan.macros, plan.shared)(
        plan.grid,
        plan.block,
        (
            *extents,
            *(map_a, map_b, map_c),
            c.array,
            _NULL if before is None else before.array,
            *strides,
            *_ending(epilogue),
        ),
        shared_mem=plan.shared,
    )
    return plan.traffic


def panels_memory(
    name: str, tile: Tile, itemsize: int, a_turned: bool, b_turned: bool
) -> tuple[int, int]:
    """(stages, bytes of shared memory) of the kernels that bring panels by ``cp.async``.

    A stage holds a panel of A and one of B. Lines are longer by 4 floats where they are transposed
    on the way, by 8 where 4-byte elements are read one by one (the layouts in the .cu files).

    >>> panels_memory("mma_multistage", (128, 128, 32), 2, False, True)
    (3, 49152)
    """
    rows, columns, k = tile
    stages = 3 if name == "mma_multistage" and rows == 128 else 2 if rows == 128 else 4
    if name == "sgemm_warptiled":
        more = 2 * 4 * k
    else:
        more = 8 * k * (a_turned + b_turned) if itemsize == 4 else 0
    return stages, stages * ((rows + columns) * k + more) * itemsize


# -- a launch's plan: all but addresses ------------------------------------------------------------


_Box = tuple[tuple[int, int, int], tuple[int, int], tuple[int, int, int]]
"""Of a tensor map: elements along a line, of lines, one matrix; bytes from line to line and beyond
the matrix; elements of a box."""


class LaunchPlan(NamedTuple):
    """A variant of a kernel and its launch, for operands that lie so; kept, as many are alike."""

    name: str
    macros: dict[str, Any]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    numbers: tuple[np.generic, ...]
    """Extents and strides, in the kernel's types and order."""
    traffic: TileTraffic
    maps: tuple[_Box | None, ...] = ()
    """What the tensor maps of A, B and C are made of; None for C where it is not brought."""


class _Parts(NamedTuple):
    """What there is of the epilogue."""

    beta: bool
    bias: bool
    gelu: bool
    before: int
    """0, or the boundary on which every line of what goes there starts."""
    turned: bool
    """Whether the bias, of C's columns, is one of rows of the transposed product."""

    @property
    def macros(self) -> dict[str, int]:
        """The parts that a variant of a kernel needs to have (epilogue.cuh)."""
        return {
            "HAS_BETA": int(self.beta),
            "HAS_BIAS": int(self.bias),
            "HAS_GELU": int(self.gelu),
            "HAS_BEFORE": int(self.before > 0),
            "BIAS_BY_ROW": int(self.bias and self.turned),
        }

    def pairs(self, c: MatrixLayout) -> int:
        """Whether C, and what goes beside it, moves by two neighbours of a row (epilogue.cuh)."""
        boundary = min(c.boundary, self.before or 16)
        return int(c.by_rows and c.columns % 2 == 0 and boundary >= 2 * c.itemsize)


def _parts(epilogue: Epilogue, c: Matrix, turned: bool) -> tuple[Matrix | None, _Parts]:
    """(where the values before the activation go, which must lie as those of C do; the parts)."""
    before, boundary = None, 0
    if epilogue.preactivation is not None:
        found = matrix(epilogue.preactivation)
        before = found.turned if turned else found
        boundary = before.layout.boundary
        given, wanted = ((x.layout.row, x.layout.column) for x in (before, c))
        if given != wanted:
            raise KernelError(
                f"on a GPU preactivation must lie as out does, strides of {wanted} elements, got "
                f"{given}; make it with cupy.empty_like(out)"
            )
    bias, gelu = epilogue.bias is not None, epilogue.activation is not None
    return before, _Parts(epilogue.loads_c, bias, gelu, boundary, turned)


@lru_cache(_PLANS)
def _plan(
    name: str, a: MatrixLayout, b: MatrixLayout, c: MatrixLayout, tile: Tile, parts: _Parts
) -> LaunchPlan:
    """Of a kernel of one tile a block."""
    _check_extents(name, a, b)
    rows, columns, k = tile
    across, down = -(-c.columns // columns), -(-c.rows // rows)
    grid: tuple[int, ...] = (across * down,)
    block: tuple[int, ...] = (128,)
    shared = 0
    macros: dict[str, Any] = {"TILE": rows}
    if name == "smem_tiled":
        grid, block = (across, down), (rows, rows)
        if down > _MAX_GRID_Y:
            raise KernelError(
                f"smem_tiled has a row of thread blocks per {rows} rows, {_MAX_GRID_Y} at most: "
                f"at most {_MAX_GRID_Y * rows} rows, got {c.rows}; cut the product into blocks or "
                f"use kernel='cublas'"
            )
    else:
        a_turned, b_turned = not a.by_rows, b.by_rows
        stages, shared = panels_memory(name, tile, a.itemsize, a_turned, b_turned)
        if name == "sgemm_warptiled" and rows == 128:
            block = (256,)  # THREADS of panels.cuh
        macros = {
            "TYPE": _TYPES[a.dtype],
            "OUT": _TYPES[c.dtype],
            "TILE_M": rows,
            "TILE_N": columns,
            "TILE_K": k,
            "STAGES": stages,
            "A_TURNED": int(a_turned),
            "B_TURNED": int(b_turned),
            "A_BYTES": _piece(a),
            "B_BYTES": _piece(b),
            "PAIRS": parts.pairs(c),
        }
    extents = (np.int32(x) for x in (c.rows, c.columns, a.columns))
    numbers: tuple[np.generic, ...] = (*extents, *a.strides, *b.strides, *c.strides)
    loads = _loads(tile, a, c, parts)
    return LaunchPlan(name, macros | parts.macros, grid, block, shared, numbers, loads)


def _piece(x: MatrixLayout) -> int:
    """Bytes that one instruction may copy of a line: 16, 4 or an element's."""
    return 16 if x.boundary == 16 else max(x.itemsize, min(x.boundary, 4))


def _loads(tile: Tile, a: MatrixLayout, c: MatrixLayout, parts: _Parts) -> TileTraffic:
    """What the tiles of C load, each along k in steps of tk.

    Edges are guarded in the kernels, so that a row of A is loaded once per column of tiles, a
    column of B once per row of them. Of the product as it is launched: where C lies by columns, A
    is what was B, transposed.
    """
    return traffic(c.rows, c.columns, a.columns, tile, a.itemsize, parts.beta, c.itemsize)


@lru_cache(_PLANS)
def _hopper_plan(
    a: MatrixLayout,
    b: MatrixLayout,
    c: MatrixLayout,
    tile: Tile | None,
    parts: _Parts,
    multiprocessors: int,
) -> LaunchPlan:
    _check_extents("wgmma_ws_persistent", a, b)
    # the copy engine writes whole 16 bytes, beyond the last column too if that ends between them
    whole = c.by_rows and c.boundary == 16 and c.columns * c.itemsize % 16 == 0
    staged = whole and c.dtype == a.dtype and not (parts.beta or parts.before)
    way = chosen(c.rows, c.columns, a.columns, multiprocessors, staged, tile)
    columns, cluster = way.tile[1], way.cluster
    # a cluster's tile: what it loads of B leaves L2 once, and the copy engine writes it into the
    # shared memory of both blocks; each loads its own of A; boxes end at the matrices' edges
    together = (128 * cluster, columns, 64)
    down, across = -(-c.rows // together[0]), -(-c.columns // columns)
    macros = {
        "TYPE": _TYPES[a.dtype],
        "OUT": _TYPES[c.dtype],
        "TILE_N": columns,
        "STAGES": way.stages,
        "CLUSTER": cluster,
        "STAGED": int(way.staged),
        "A_TURNED": int(not a.by_rows),
        "B_TURNED": int(b.by_rows),
        "PAIRS": parts.pairs(c),
        **parts.macros,
    }
    box_a = (64, 128, 1) if a.by_rows else (64, 64, 1)
    box_b = (64, 64, 1) if b.by_rows else (64, columns // cluster, 1)
    return LaunchPlan(
        "wgmma_ws_persistent",
        macros,
        (min(down * across, max(1, multiprocessors // cluster)) * cluster,),
        (384,),
        way.shared_bytes,
        (*map(np.int32, (c.rows, c.columns, a.columns)), *c.strides),
        _loads(together, a, c, parts),
        (_extents(a, box_a), _extents(b, box_b), _extents(c, (64, 64, 1)) if way.staged else None),
    )


def _extents(x: MatrixLayout, box: tuple[int, int, int]) -> _Box:
    length, lines = (x.columns, x.rows) if x.by_rows else (x.rows, x.columns)
    across = (x.row if x.by_rows else x.column) * x.itemsize
    return (length, lines, 1), (across, -(-lines * across // 16) * 16), box


def _check_extents(name: str, a: MatrixLayout, b: MatrixLayout) -> None:
    m, k, n = a.rows, a.columns, b.columns
    if max(m, n, k) > _MAX_EXTENT:
        raise KernelError(
            f"{name} counts rows and columns in 32 bits, up to {_MAX_EXTENT}, "
            f"got {m} x {k} by {k} x {n}; cut the product into blocks or use kernel='cublas'"
        )


# -- launches -------------------------------------------------------------------------------------


def _run(
    name: str, a: Matrix, b: Matrix, c: Matrix, turned: bool, tile: Tile, epilogue: Epilogue
) -> TileTraffic:
    """The launch of a kernel of one tile a block."""
    before, parts = _parts(epilogue, c, turned)
    plan = _plan(name, a.layout, b.layout, c.layout, tile, parts)
    extents, a_strides, b_strides, c_strides = (
        plan.numbers[i:j] for i, j in ((0, 3), (3, 5), (5, 7), (7, 9))
    )
    _kernel(plan.name, plan.macros, plan.shared)(
        plan.grid,
        plan.block,
        (
            *extents,
            a.array,
            *a_strides,
            b.array,
            *b_strides,
            c.array,
            _NULL if before is None else before.array,
            *c_strides,
            *_ending(epilogue),
        ),
        shared_mem=plan.shared,
    )
    return plan.traffic


_NULL = np.uint64(0)


def _by_rows(a: Array, b: Array, out: Array) -> tuple[Matrix, Matrix, Matrix, bool]:
    """(a, b, c, False), or the transposed product (b^T, a^T, c^T, True) if C's columns lie
    together: threads that are neighbours write neighbours of a row."""
    x, y, c = readable(a), readable(b), matrix(out)
    if c.layout.by_rows or not c.layout.by_columns:
        return x, y, c, False
    return y.turned, x.turned, c.turned, True


def _ending(epilogue: Epilogue) -> tuple[np.float32, np.float32, Array]:
    """The last arguments of every kernel: alpha, beta, bias."""
    bias = epilogue.bias
    if bias is None:
        bias = _NULL
    elif bias.strides[0] != bias.itemsize:
        bias = array_namespace(bias).ascontiguousarray(bias)
    return np.float32(epilogue.alpha), np.float32(epilogue.beta), bias


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
