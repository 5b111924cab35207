"""A function per kernel: the variant that its operands call for, and its arguments.

Each gets a, b and out, checked before; launches on the device and
stream in use, and does not wait.
"""

from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, array_namespace, namespace
from tiledask.tile.config import config_of, hopper_tile
from tiledask.tile.cuda import build, tensor_map
from tiledask.tile.cuda.operands import Matrix, MatrixLayout, address_of, matrix, padded, readable
from tiledask.tile.epilogue import Epilogue
from tiledask.tile.levels import Tile, TileTraffic, traffic

__all__ = [
    "MMA_K_BYTES",
    "mma_multistage",
    "sgemm_warptiled",
    "smem_tiled",
    "wgmma_ws_persistent",
]

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
    tile = tile or config_of("mma_multistage", a.dtype.name).block
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

    A tile that is not given is chosen by the count of tiles (`hopper_tile`). Copies an operand
    whose lines of elements do not all start on boundaries of 16 bytes. C leaves through shared
    memory where its rows start and end on such boundaries and it is of the operands' type and
    neither read nor wanted before the activation; else by pairs, or one by one.
    """
    a, b, c, turned = _by_rows(a, b, out)
    return _run("wgmma_ws_persistent", padded(a), padded(b), c, turned, tile, epilogue)


# -- a launch: a plan of all but addresses, kept, as many are alike --------------------------------


_Box = tuple[tuple[int, int, int], tuple[int, int], tuple[int, int, int]]
"""Of a tensor map: elements along a line, of lines, one matrix; bytes from line to line and beyond
the matrix; elements of a box."""


class _Parts(NamedTuple):
    """What there is of the epilogue."""

    beta: bool
    bias: bool
    gelu: bool
    before: int
    """0, or the boundary on which every line of what goes there starts."""
    turned: bool
    """Whether the bias, of C's columns, is one of rows of the transposed product."""

    def macros(self, c: MatrixLayout) -> dict[str, int]:
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
    name: str, a: Matrix, b: Matrix, c: Matrix, turned: bool, tile: Tile | None, epilogue: Epilogue
) -> TileTraffic:
    x, y, z = a.layout, b.layout, c.layout
    before, boundary = None, 0
    if epilogue.preactivation is not None:
        before = matrix(epilogue.preactivation)
        before = before.turned if turned else before
        boundary = before.layout.boundary
        given, wanted = ((each.row, each.column) for each in (before.layout, z))
        if given != wanted:
            raise KernelError(
                f"on a GPU preactivation must lie as out does, strides of {wanted} elements, got "
                f"{given}; make it with cupy.empty_like(out)"
            )
    bias = epilogue.bias
    parts = _Parts(
        epilogue.loads_c, bias is not None, epilogue.activation is not None, boundary, turned
    )
    if name == "wgmma_ws_persistent":
        plan = _hopper_plan(x, y, z, tile, parts, _multiprocessors())
        maps = [
            box and tensor_map.encode(each.layout.dtype, address_of(each.array), *box)
            for each, box in zip((a, b, c), plan.maps, strict=True)
        ]
        # C's is not read where it is not brought, but on its boundary
        inputs: list[Array] = [*maps[:2], maps[0] if maps[2] is None else maps[2]]
    else:
        assert tile is not None  # only that kernel chooses one by the product
        plan = _plan(name, x, y, z, tile, parts)
        inputs = [a.array, *x.strides, b.array, *y.strides]
    if bias is not None and bias.strides[0] != bias.itemsize:
        bias = array_namespace(bias).ascontiguousarray(bias)
    _kernel(name, plan.macros, plan.shared)(
        plan.grid,
        plan.block,
        (
            *(np.int32(extent) for extent in (z.rows, z.columns, x.columns)),
            *inputs,
            c.array,
            _NULL if before is None else before.array,
            *z.strides,
            np.float32(epilogue.alpha),
            np.float32(epilogue.beta),
            _NULL if bias is None else bias,
        ),
        shared_mem=plan.shared,
    )
    # of the product as it is launched: where C lies by columns, A is what was B, transposed
    return _traffic(z.rows, z.columns, x.columns, plan.loads, x.itemsize, parts.beta, z.itemsize)


_NULL = np.uint64(0)
_traffic = lru_cache(_PLANS)(traffic)


@lru_cache(_PLANS)
def _plan(
    name: str, a: MatrixLayout, b: MatrixLayout, c: MatrixLayout, tile: Tile, parts: _Parts
) -> _Plan:
    """Of a kernel of one tile a block."""
    _check_extents(name, a, b)
    rows, columns, k = tile
    across, down = -(-c.columns // columns), -(-c.rows // rows)
    if name == "smem_tiled":
        if down > _MAX_GRID_Y:
            raise KernelError(
                f"smem_tiled has a row of thread blocks per {rows} rows, {_MAX_GRID_Y} at most: "
                f"at most {_MAX_GRID_Y * rows} rows, got {c.rows}; cut the product into blocks or "
                f"use kernel='cublas'"
            )
        smem = {"TILE": rows} | parts.macros(c)
        del smem["PAIRS"]  # its threads move single elements
        return _Plan(smem, (across, down), (rows, rows), 0, tile)
    a_turned, b_turned = not a.by_rows, b.by_rows
    config = config_of(name, a.dtype, tile)
    if name == "mma_multistage" and a.itemsize == 4:
        # lines are longer by 8 floats where those are read one by one
        config = replace(config, stage_extra=32 * k * (a_turned + b_turned))
    macros: dict[str, Any] = {
        "TYPE": _TYPES[a.dtype],
        "OUT": _TYPES[c.dtype],
        "TILE_M": rows,
        "TILE_N": columns,
        "TILE_K": k,
        "STAGES": config.stages,
        "A_TURNED": int(a_turned),
        "B_TURNED": int(b_turned),
        "A_BYTES": _piece(a),
        "B_BYTES": _piece(b),
    }
    shared, threads = config.shared_bytes, config.threads
    return _Plan(macros | parts.macros(c), (across * down,), (threads,), shared, tile)


def _piece(x: MatrixLayout) -> int:
    """Bytes that one instruction may copy of a line: 16, 4 or an element's."""
    return 16 if x.boundary == 16 else max(x.itemsize, min(x.boundary, 4))


@lru_cache(_PLANS)
def _hopper_plan(
    a: MatrixLayout,
    b: MatrixLayout,
    c: MatrixLayout,
    tile: Tile | None,
    parts: _Parts,
    multiprocessors: int,
) -> _Plan:
    _check_extents("wgmma_ws_persistent", a, b)
    # the copy engine writes whole 16 bytes, beyond the last column too if that ends between them
    whole = c.by_rows and c.boundary == 16 and c.columns * c.itemsize % 16 == 0
    staged = whole and c.dtype == a.dtype and not (parts.beta or parts.before)
    config = hopper_tile(c.rows, c.columns, a.columns, multiprocessors, staged, tile)
    columns, cluster = config.block[1], config.cluster[0]
    # a cluster's tile: what it loads of B leaves L2 once, and the copy engine writes it into the
    # shared memory of both blocks; each loads its own of A; boxes end at the matrices' edges
    together = (128 * cluster, columns, 64)
    down, across = -(-c.rows // together[0]), -(-c.columns // columns)
    macros = {
        "TYPE": _TYPES[a.dtype],
        "OUT": _TYPES[c.dtype],
        "TILE_N": columns,
        "STAGES": config.stages,
        "CLUSTER": cluster,
        "STAGED": int(staged),
        "A_TURNED": int(not a.by_rows),
        "B_TURNED": int(b.by_rows),
    }
    box_a = (64, 128, 1) if a.by_rows else (64, 64, 1)
    box_b = (64, 64, 1) if b.by_rows else (64, columns // cluster, 1)
    blocks = min(down * across, max(1, multiprocessors // cluster)) * cluster
    box_c = _extents(c, (64, 64, 1)) if staged else None
    maps = _extents(a, box_a), _extents(b, box_b), box_c
    return _Plan(
        macros | parts.macros(c), (blocks,), (config.threads,), config.shared_bytes, together, maps
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


def _by_rows(a: Array, b: Array, out: Array) -> tuple[Matrix, Matrix, Matrix, bool]:
    """(a, b, c, False), or the transposed product (b^T, a^T, c^T, True) if C's columns lie
    together: threads that are neighbours write neighbours of a row."""
    x, y, c = readable(a), readable(b), matrix(out)
    if c.layout.by_rows or not c.layout.by_columns:
        return x, y, c, False
    return y.turned, x.turned, c.turned, True


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
