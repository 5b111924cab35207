"""A launch of one of our kernels: the variant that its operands call for, and its arguments.

    smem_tiled            the textbook kernel; operands and C of any strides
    sgemm_warptiled       float32 on CUDA cores
    mma_multistage        bfloat16 on a warp's tensor cores, 64 bytes of k at a time
    wgmma_ws_persistent   bfloat16 on Hopper's tensor cores, tiles brought by its copy engine

For all but the first, operands whose lines do not start on boundaries of 16 bytes are copied, and C
is made beside where its lines do not start and end there. The last chooses its tile where none is
given (`hopper_tile`); C leaves through shared memory if it is of the operands' type and not read.
"""

from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np

from tiledask.errors import KernelError
from tiledask.tile.backend import Array, namespace
from tiledask.tile.choice.config import config_of, hopper_tile
from tiledask.tile.cuda import build
from tiledask.tile.cuda.operands import MatrixLayout, address_of, bits, layout, padded, tensor_map
from tiledask.tile.levels import Tile, TileTraffic, traffic

__all__ = ["launch"]

_TYPES = {"bfloat16": "bf16", "float32": "float"}

_Macros = tuple[tuple[str, Any], ...]
"""(name, value) of each."""
_Box = tuple[tuple[int, int, int], tuple[int, int], tuple[int, int, int]]
"""Of a tensor map: elements along a line, of lines, one matrix; bytes from line to line and beyond
the matrix; elements of a box."""


class _Plan(NamedTuple):
    """A variant of a kernel and its launch: all but addresses."""

    macros: _Macros
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    counted: TileTraffic
    """What the grid loads. Edges are guarded in the kernels, so that a row of A is loaded once per
    column of tiles, a column of B once per row of them."""
    maps: tuple[_Box | None, ...] = ()
    """What the tensor maps of A, B and C are made of; None for C where it is not brought."""


def launch(
    name: str, a: Array, b: Array, out: Array, tile: Tile | None, beta: float
) -> TileTraffic:
    """Launch the kernel ``name`` on the stream in use, without waiting; count what its grid loads.

    a, b and out were checked before. Where C's columns lie together it computes C^T = B^T A^T:
    threads that are neighbours write neighbours of a row, and the count is that product's.
    """
    c = made = out
    if name != "smem_tiled":
        a, b, c = padded(a), padded(b), padded(out, whole=True)
        made = c
        if not layout(c).by_rows:
            a, b, c = b.T, a.T, c.T
    x, y, z = map(layout, (a, b, c))
    many = _multiprocessors() if name.startswith("wgmma") else 0
    plan = _plan(name, x, y, z, tile, beta != 0, many)
    if plan.maps:
        maps = [
            box and tensor_map(address_of(each), *box)
            for each, box in zip((a, b, c), plan.maps, strict=True)
        ]
        # C's is not read where it is not brought, but on its boundary
        inputs: list[Any] = [*maps[:2], maps[0] if maps[2] is None else maps[2]]
    else:
        inputs = [a, *map(np.int64, x[4:6]), b, *map(np.int64, y[4:6])]
    sizes = map(np.int32, (z.rows, z.columns, x.columns))
    strides = map(np.int64, z[4 : 6 if name == "smem_tiled" else 5])
    arguments = (*sizes, *inputs, c, *strides, np.float32(beta))
    kernel = _kernel(name, plan.macros, plan.shared)
    kernel(plan.grid, plan.block, arguments, shared_mem=plan.shared)
    if made is not out:
        bits(out)[...] = bits(made)
    return plan.counted


@lru_cache(4096)
def _plan(
    name: str,
    a: MatrixLayout,
    b: MatrixLayout,
    c: MatrixLayout,
    tile: Tile | None,
    beta: bool,
    multiprocessors: int,
) -> _Plan:
    m, k, n = a.rows, a.columns, b.columns
    rows, columns, depth = tile or (0, 0, 0)
    # a grid's y direction takes 65,535 blocks of 16 rows or more; others count in 32 bits
    if max(m, n, k) > (most := 2**20 if name == "smem_tiled" else 2**31 - 512):
        raise KernelError(f"{name} takes extents up to {most}, got {m} x {k} @ {k} x {n}; cut them")
    lies = (
        ("HAS_BETA", int(beta)),
        *(("TYPE", _TYPES[a.dtype]), ("OUT", _TYPES[c.dtype])),
        *(("A_TURNED", int(not a.by_rows)), ("B_TURNED", int(b.by_rows))),
    )
    if name == "wgmma_ws_persistent":
        return _hopper_plan(a, b, c, tile, lies, beta, multiprocessors)
    assert tile is not None  # only that kernel chooses one by the product
    across, down = -(-n // columns), -(-m // rows)
    counted = traffic(m, n, k, tile, a.itemsize, beta, c.itemsize)
    if name == "smem_tiled":  # whose threads move single elements
        macros = ("TILE", rows), ("HAS_BETA", int(beta))
        return _Plan(macros, (across, down), (rows, rows), 0, counted)
    config = config_of(name, a.dtype, tile)
    sizes = ("TILE_M", rows), ("TILE_N", columns), ("TILE_K", depth), ("STAGES", config.stages)
    grid, block = (across * down,), (config.threads,)
    return _Plan((*lies, *sizes), grid, block, config.shared_bytes, counted)


def _hopper_plan(
    a: MatrixLayout,
    b: MatrixLayout,
    c: MatrixLayout,
    tile: Tile | None,
    macros: _Macros,
    beta: bool,
    multiprocessors: int,
) -> _Plan:
    staged = c.dtype == a.dtype and not beta
    config = hopper_tile(c.rows, c.columns, a.columns, multiprocessors, staged, tile)
    columns, cluster = config.block[1], config.cluster
    # a cluster's tile: what it loads of B leaves L2 once, and the copy engine writes it into the
    # shared memory of both blocks; each loads its own of A; boxes end at the matrices' edges
    together = (128 * cluster, columns, 64)
    counted = traffic(c.rows, c.columns, a.columns, together, a.itemsize, beta, c.itemsize)
    clusters = -(-c.rows // together[0]) * -(-c.columns // columns)
    blocks = min(clusters, max(1, multiprocessors // cluster)) * cluster
    sizes = ("TILE_N", columns), ("STAGES", config.stages), ("CLUSTER", cluster)
    maps = (
        _box(a, (64, 128, 1) if a.by_rows else (64, 64, 1)),
        _box(b, (64, 64, 1) if b.by_rows else (64, columns // cluster, 1)),
        _box(c, (64, 64, 1)) if staged else None,
    )
    variant, block = (*macros, *sizes, ("STAGED", int(staged))), (config.threads,)
    return _Plan(variant, (blocks,), block, config.shared_bytes, counted, maps)


def _box(x: MatrixLayout, box: tuple[int, int, int]) -> _Box:
    length, lines = (x.columns, x.rows) if x.by_rows else (x.rows, x.columns)
    across = (x.row if x.by_rows else x.column) * x.itemsize
    return (length, lines, 1), (across, -(-lines * across // 16) * 16), box


# -- the device in use ----------------------------------------------------------------------------


def _kernel(name: str, macros: _Macros, shared: int) -> Any:
    """The kernel on the device in use, allowed this much dynamic shared memory."""
    device = namespace("cupy").cuda.Device()
    return _ready(name, macros, shared, device.id, device.compute_capability)


@cache
def _ready(name: str, macros: _Macros, shared: int, device: int, capability: str) -> Any:
    """A kernel is one object for all devices, but what it is allowed is said on each, once."""
    kernel = build.loaded(name, dict(macros), capability)
    if shared > 48 * 1024:
        kernel.max_dynamic_shared_size_bytes = shared
    return kernel


def _multiprocessors() -> int:
    count: int = namespace("cupy").cuda.Device().attributes["MultiProcessorCount"]
    return count
