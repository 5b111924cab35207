"""A function per kernel: the variant that its operands call for, and its arguments.

Each gets a, b and out of 2 dimensions, or all of 3, checked before; launches on the device and
stream in use, and does not wait.
"""

from typing import Any

import numpy as np

from tiledask.errors import KernelError
from tiledask.tile.backend import array_namespace, namespace, on_device
from tiledask.tile.cuda import build, tensor_map
from tiledask.tile.cuda.operands import Matrix, address_of, matrix, padded, readable
from tiledask.tile.epilogue import Epilogue
from tiledask.tile.levels import Tile, TileTraffic

__all__ = [
    "MMA_TILES", "SGEMM_TILES", "SMEM_TILES", "WGMMA_TILES", "mma_multistage", "mma_tf32",
    "panels_memory",
    "sgemm_warptiled", "smem_tiled", "wgmma_memory", "wgmma_ws_persistent",
]  # fmt: skip

SMEM_TILES = ((16, 16, 16), (32, 32, 32))
SGEMM_TILES = ((128, 128, 16), (64, 64, 16))
MMA_TILES = ((128, 128, 32), (64, 64, 32), (128, 128, 16), (64, 64, 16))
"""64 bytes of k at a time: 32 halves, or 16 of float32."""
WGMMA_TILES = ((128, 256, 64), (128, 128, 64))

_MAX_EXTENT = 2**31 - 512
"""Rows and columns are 32-bit ints on the device, and the last tile may end some beyond them."""
_MAX_GRID_YZ = 65_535
"""Blocks in the grid's y and z directions (CUDA C++ Programming Guide, table of capabilities)."""
_SHARED_BYTES = 227 * 1024
"""Of a block of compute capability 9.0 (CUDA C++ Programming Guide, technical specifications)."""
_TYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "float"}


def smem_tiled(a: Any, b: Any, out: Any, tile: Tile, epilogue: Epilogue) -> TileTraffic:
    """The textbook kernel; operands and C of any strides."""
    extent = tile[0]
    a, b, c = matrix(a), matrix(b), matrix(out)
    _check_extents("smem_tiled", a, b)
    if -(-c.rows // extent) > _MAX_GRID_YZ:
        raise KernelError(
            f"smem_tiled has one row of thread blocks per {extent} rows, up to {_MAX_GRID_YZ} of "
            f"them, so at most {_MAX_GRID_YZ * extent} rows, got {c.rows}; cut the product into "
            f"blocks or use kernel='cublas'"
        )
    grid = (-(-c.columns // extent), -(-c.rows // extent))
    _launch("smem_tiled", {"TILE": extent}, grid, (extent, extent), 0, a, b, c, epilogue)
    return _loads((extent,) * 3, *grid, a, b, c, epilogue)


def sgemm_warptiled(a: Any, b: Any, out: Any, tile: Tile, epilogue: Epilogue) -> TileTraffic:
    """float32 on CUDA cores. Copies an operand whose rows and columns both lie apart."""
    return _panels("sgemm_warptiled", a, b, out, tile, epilogue)


def mma_multistage(a: Any, b: Any, out: Any, tile: Tile, epilogue: Epilogue) -> TileTraffic:
    """Halves on a warp's tensor cores. Copies an operand whose rows and columns both lie apart."""
    return _panels("mma_multistage", a, b, out, _64_bytes(tile, a.itemsize), epilogue)


def mma_tf32(a: Any, b: Any, out: Any, tile: Tile, epilogue: Epilogue) -> TileTraffic:
    """float32 rounded to TF32, the 10 bits of mantissa that tensor cores read, by that kernel."""
    own = tile == MMA_TILES[0]  # of halves: nobody chose it
    tile = (*tile[:2], 16) if own else _64_bytes(tile, a.itemsize)
    return _panels("mma_multistage", a, b, out, tile, epilogue)


def _64_bytes(tile: Tile, itemsize: int) -> Tile:
    if tile[2] * itemsize != 64:
        raise KernelError(
            f"mma_multistage takes 64 bytes of k at a time, {64 // itemsize} elements of "
            f"{itemsize} bytes, got a tile of {tile[2]}; use {(*tile[:2], 64 // itemsize)}"
        )
    return tile


def wgmma_ws_persistent(a: Any, b: Any, out: Any, tile: Tile, epilogue: Epilogue) -> None:
    """Halves on Hopper's tensor cores, tiles brought by its copy engine.

    Copies an operand whose lines of elements do not all start on boundaries of 16 bytes. C leaves
    through shared memory where its rows do, and where it is neither read nor wanted before the
    activation; elsewhere element by element.
    """
    name = "wgmma_ws_persistent"
    a, b, c, turned = _by_rows(readable(a), readable(b), matrix(out))
    a, b = padded(a), padded(b)
    _check_extents(name, a, b)
    columns = tile[1]
    staged = int(
        c.by_rows and c.boundary == 16 and c.array.dtype == a.array.dtype
        and not epilogue.loads_c and epilogue.preactivation is None
    )  # fmt: skip
    cluster = 2 if c.rows > 128 else 1
    stages, shared = wgmma_memory(columns, staged)
    macros = {
        "TYPE": _TYPES[a.array.dtype.name], "OUT": _TYPES[c.array.dtype.name],
        "TILE_N": columns, "STAGES": stages, "CLUSTER": cluster, "STAGED": staged,
        "A_TURNED": int(not a.by_rows), "B_TURNED": int(b.by_rows),
        **_used(epilogue),
    }  # fmt: skip
    box_a = (64, 64, 1) if macros["A_TURNED"] else (64, 128, 1)
    box_b = (64, 64, 1) if macros["B_TURNED"] else (64, columns // cluster, 1)
    map_a, map_b = _map(a, box_a), _map(b, box_b)
    map_c = _map(c, (64, 64, 1)) if staged else np.zeros_like(map_a)
    tiles = -(-c.rows // (128 * cluster)) * -(-c.columns // columns) * c.batches
    blocks = min(tiles, _multiprocessors() // cluster) * cluster
    before = _before(epilogue, c, turned)
    with on_device(out):
        kernel = _kernel(name, macros, shared)
        kernel((blocks,), (384,), (
            *map(np.int32, (c.rows, c.columns, a.columns, c.batches)),
            map_a, np.int32(a.batch > 0), map_b, np.int32(b.batch > 0), map_c,
            c.array, _NULL if before is None else before.array, *c.strides,
            *_ending(epilogue, turned),
        ), shared_mem=shared)  # fmt: skip


def wgmma_memory(columns: int, staged: int) -> tuple[int, int]:
    """(stages, bytes of shared memory) of `wgmma_ws_persistent`: as many stages as a block holds.

    A stage is 128 rows of A and ``columns`` of B, 128 bytes each, and two barriers; C goes through
    shared memory if ``staged``.

    >>> wgmma_memory(256, staged=1), wgmma_memory(256, staged=0)
    ((3, 213040), (4, 196672))
    """
    stage = (128 + columns) * 128 + 16
    tile_of_c = staged * 128 * columns * 2
    stages = (_SHARED_BYTES - tile_of_c) // stage
    return stages, stages * stage + tile_of_c


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


# -- what the kernels share -----------------------------------------------------------------------


def _panels(name: str, a: Any, b: Any, out: Any, tile: Tile, epilogue: Epilogue) -> TileTraffic:
    """Launches a kernel of one tile a block, whose panels come by ``cp.async``."""
    a, b, c, turned = _by_rows(readable(a), readable(b), matrix(out))
    _check_extents(name, a, b)
    rows, columns, k = tile
    a_turned, b_turned, size = not a.by_rows, b.by_rows, a.array.itemsize
    stages, shared = panels_memory(name, tile, size, a_turned, b_turned)
    macros = {
        "TYPE": _TYPES[a.array.dtype.name], "OUT": _TYPES[c.array.dtype.name],
        "TILE_M": rows, "TILE_N": columns, "TILE_K": k, "STAGES": stages,
        "A_TURNED": int(a_turned), "B_TURNED": int(b_turned),
        "A_BYTES": _piece(a), "B_BYTES": _piece(b),
    }  # fmt: skip
    across, down = -(-c.columns // columns), -(-c.rows // rows)
    _launch(name, macros, (across * down,), (128,), shared, a, b, c, epilogue, turned)
    return _loads(tile, across, down, a, b, c, epilogue)


def _loads(
    tile: Tile, across: int, down: int, a: Matrix, b: Matrix, c: Matrix, epilogue: Epilogue
) -> TileTraffic:
    """What a grid of ``across`` x ``down`` thread blocks loads that walks along k in steps of tk.

    From the bounds of the launch and of the kernel's own loop: blocks guard their edges, so that a
    row of A is loaded once per column of blocks, a column of B once per row of them. Of the
    product as it is launched: where C lies by columns, A is what was B, transposed.
    """
    stored = c.batches * c.rows * c.columns * c.array.itemsize
    return TileTraffic(
        c.rows, c.columns, a.columns, tile, a.array.itemsize,
        tiles=c.batches * across * down * -(-a.columns // tile[2]),
        a=c.batches * across * a.rows * a.columns * a.array.itemsize,
        b=c.batches * down * b.rows * b.columns * b.array.itemsize,
        c=stored, c_loaded=stored if epilogue.loads_c else 0,
    )  # fmt: skip


def _piece(x: Matrix) -> int:
    """Bytes that one instruction may copy of a line: 16, 4 or an element's."""
    return 16 if x.boundary == 16 else max(x.array.itemsize, min(x.boundary, 4))


def _launch(
    name: str, macros: dict, grid: tuple, block: tuple, shared: int,
    a: Matrix, b: Matrix, c: Matrix, epilogue: Epilogue, turned: bool = False,
) -> None:  # fmt: skip
    """Launches a kernel whose grid has the batch as its third direction."""
    before = _before(epilogue, c, turned)
    with on_device(c.array):
        kernel = _kernel(name, {**macros, **_used(epilogue)}, shared)
        for first in range(0, c.batches, _MAX_GRID_YZ):
            count = min(_MAX_GRID_YZ, c.batches - first)
            kernel((*(*grid, 1)[:2], count), block, (
                *map(np.int32, (c.rows, c.columns, a.columns)),
                a.part(first), *a.strides, b.part(first), *b.strides,
                c.part(first), _NULL if before is None else before.part(first), *c.strides,
                *_ending(epilogue, turned),
            ), shared_mem=shared)  # fmt: skip


_NULL = np.uint64(0)


def _by_rows(a: Matrix, b: Matrix, c: Matrix) -> tuple[Matrix, Matrix, Matrix, bool]:
    """(a, b, c, False), or the transposed product (b^T, a^T, c^T, True) if C's columns lie
    together: threads that are neighbours write neighbours of a row."""
    if c.by_rows or not c.by_columns:
        return a, b, c, False
    return b.turned, a.turned, c.turned, True


def _used(epilogue: Epilogue) -> dict[str, int]:
    """What of the epilogue a variant of a kernel needs to have (epilogue.cuh)."""
    return {
        "HAS_BETA": int(epilogue.loads_c),
        "HAS_BIAS": int(epilogue.bias is not None),
        "HAS_GELU": int(epilogue.activation is not None),
        "HAS_BEFORE": int(epilogue.preactivation is not None),
    }


def _ending(epilogue: Epilogue, turned: bool) -> tuple:
    """The last arguments of every kernel: alpha, beta, bias, whether by row, GELU."""
    bias = _NULL
    if epilogue.bias is not None:
        bias = array_namespace(epilogue.bias).ascontiguousarray(epilogue.bias)
    gelu = int(epilogue.activation is not None)
    return (
        np.float32(epilogue.alpha), np.float32(epilogue.beta), bias, np.int32(turned),
        np.int32(gelu),
    )  # fmt: skip


def _before(epilogue: Epilogue, c: Matrix, turned: bool) -> Matrix | None:
    """Where the values before the activation go; they must lie as those of C do."""
    if epilogue.preactivation is None:
        return None
    found = matrix(epilogue.preactivation)
    found = found.turned if turned else found
    if (found.row, found.column, found.batch) != (c.row, c.column, c.batch):
        raise KernelError(
            f"on a GPU preactivation must lie as out does, strides of "
            f"{(c.batch, c.row, c.column)} elements, got "
            f"{(found.batch, found.row, found.column)}; make it with cupy.empty_like(out)"
        )
    return found


def _map(x: Matrix, box: tuple[int, int, int]) -> np.ndarray:
    """A tensor map of three dimensions: along a line, from line to line, from matrix to matrix."""
    size = x.array.itemsize
    length, lines = (x.columns, x.rows) if x.by_rows else (x.rows, x.columns)
    across = (x.row if x.by_rows else x.column) * size
    batches = x.batches if x.batch else 1
    further = x.batch * size if x.batch else -(-lines * across // 16) * 16
    return tensor_map.encode(
        x.array.dtype, address_of(x.array), (length, lines, batches), (across, further), box
    )


def _kernel(name: str, macros: dict, shared: int) -> Any:
    """The kernel on the device in use, allowed this much dynamic shared memory."""
    kernel = build.loaded(name, macros, _capability())
    if shared > 48 * 1024:
        kernel.max_dynamic_shared_size_bytes = shared
    return kernel


def _capability() -> str:
    return namespace("cupy").cuda.Device().compute_capability


def _multiprocessors() -> int:
    return namespace("cupy").cuda.Device().attributes["MultiProcessorCount"]


def _check_extents(name: str, a: Matrix, b: Matrix) -> None:
    m, k, n = a.rows, a.columns, b.columns
    if max(m, n, k) > _MAX_EXTENT:
        raise KernelError(
            f"{name} counts rows and columns in 32 bits, up to {_MAX_EXTENT}, "
            f"got {m} x {k} by {k} x {n}; cut the product into blocks or use kernel='cublas'"
        )
