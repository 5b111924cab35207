"""The high level of the two-level product: which blocks meet on which worker.

C[I_X, J_Y] = A[I_X, K] @ B[K, J_Y]: X and Y are mesh axes; every rank multiplies what it holds
or has fetched, tile by tile, with one of ``td.tile.kernels``. The tile decides nothing here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from distributed import Future

from tiledask.dist.array import Both, ShardedArray
from tiledask.dist.collectives import Sender, within
from tiledask.dist.counters import counting
from tiledask.errors import DoesNotFitError, PlacementError
from tiledask.plan.comms import Piece, fetch, traffic_of
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.placement import Partial, Placement, Region, Replicate, Shard, Tiling
from tiledask.plan.units import format_bytes, parse_bytes
from tiledask.tile import kernels, workspace
from tiledask.tile import matmul as tile_matmul
from tiledask.tile.backend import namespace

__all__ = ["algorithms", "matmul"]

RUNTIME = 8 * 2**20
"""Bytes that BLAS, the interpreter and the allocator take beside the blocks."""
_SEEN = "measured: 0.5 to 6 MB above the blocks on CPU workers"

# What A and B may be along one mesh axis so that each rank multiplies what it holds, and what
# the product then is along that axis.
_LOCAL: dict[tuple[Placement, Placement], Placement] = {
    (Replicate(), Replicate()): Replicate(),
    (Shard(0), Replicate()): Shard(0),  # rows of A:             batch
    (Replicate(), Shard(1)): Shard(1),  # columns of B:          column-parallel
    (Shard(1), Shard(0)): Partial(),  # the summed dimension:  row-parallel
    (Partial(), Replicate()): Partial(),
    (Replicate(), Partial()): Partial(),
}


@dataclass(frozen=True)
class Plan:
    """What a product fetches and makes, known before anything runs."""

    algorithm: str
    result: Tiling
    a: tuple[tuple[Piece, ...], ...]
    """For each rank, the pieces of A that it multiplies."""
    b: tuple[tuple[Piece, ...], ...]
    """For each rank, the pieces of B."""


def local(a: Tiling, b: Tiling) -> Plan:
    """Every rank multiplies the blocks it holds: nothing moves. The result may be Partial()."""
    placements = []
    for axis, pair in enumerate(zip(a.placements, b.placements, strict=True)):
        if pair not in _LOCAL:
            raise PlacementError(
                f"mesh axis {axis}: {pair[0]} @ {pair[1]} cannot be multiplied where it lies; "
                f"allowed are {', '.join(f'{x} @ {y}' for x, y in _LOCAL)}. "
                f"Use td.redistribute, or algorithm='gather'"
            )
        placements.append(_LOCAL[pair])
    return _plan("local", a, b, placements)


def summa(a: Tiling, b: Tiling) -> Plan:
    """C stays, panels travel: rank (i, j) fetches A's block row i and B's block column j.

          B  [0j]          a p x q mesh with A, B and C all (Shard(0), Shard(1)):
             [1j]          each rank receives (q-1)/q of a row of A
    A [i0][i1]  C [ij]     and (p-1)/p of a column of B

    van de Geijn and Watts, "SUMMA", 1997.
    """
    grid = (Shard(0), Shard(1))
    if a.placements != grid or b.placements != grid:
        raise PlacementError(
            f"summa needs A and B on a 2-D mesh as {grid}, got A {a.placements} and "
            f"B {b.placements}; distribute them so, or leave algorithm= out"
        )
    return _plan("summa", a, b, grid)


def gather(a: Tiling, b: Tiling) -> Plan:
    """What a rank lacks of the operands is fetched first; C keeps a split that A or B has."""
    placements = []
    for axis, pair in enumerate(zip(a.placements, b.placements, strict=True)):
        if pair in _LOCAL:
            placements.append(_LOCAL[pair])
        elif Partial() in pair:
            raise PlacementError(
                f"mesh axis {axis}: {pair[0]} @ {pair[1]} would multiply before the addends are "
                f"summed; td.redistribute the Partial() operand to Replicate() or a Shard first"
            )
        else:  # rows of A win over columns of B
            rows, columns = pair[0] == Shard(0), pair[1] == Shard(1)
            placements.append(Shard(0) if rows else Shard(1) if columns else Replicate())
    return _plan("gather", a, b, placements)


def _plan(name: str, a: Tiling, b: Tiling, placements: Sequence[Placement]) -> Plan:
    """The plan that leaves C as ``placements``: each rank fetches what its block of C needs."""
    (m, k), (_, n) = a.shape, b.shape
    result = Tiling((m, n), a.mesh, tuple(placements))
    summed = [
        Shard(0) if (of_a, of_b) == (Shard(1), Shard(0)) else Replicate()
        for of_a, of_b in zip(a.placements, b.placements, strict=True)
    ]
    inner = Tiling((k,), a.mesh, tuple(summed))  # the part of the sum that each rank takes
    keep = tuple(axis for axis, c in enumerate(placements) if c == Partial())
    pieces_a, pieces_b = [], []
    for at in result.coordinates():
        (rows, columns), (depth,) = result.region(at), inner.region(at)
        pieces_a.append(tuple(fetch(a, at, (rows, depth), keep)))
        pieces_b.append(tuple(fetch(b, at, (depth, columns), keep)))
    return Plan(name, result, tuple(pieces_a), tuple(pieces_b))


algorithms: dict[str, Callable[[Tiling, Tiling], Plan]] = {
    "local": local,
    "summa": summa,
    "gather": gather,
}
"""Name -> the function that plans a product of two tilings, or raises PlacementError."""


def choose(a: Tiling, b: Tiling) -> str:
    """The algorithm for operands that lie like this: the first of the table that takes them."""
    if all(pair in _LOCAL for pair in zip(a.placements, b.placements, strict=True)):
        return "local"
    return "summa" if a.placements == b.placements == (Shard(0), Shard(1)) else "gather"


def matmul(
    a: ShardedArray,
    b: ShardedArray,
    *,
    algorithm: str | None = None,
    kernel: str = "blas",
    tile: int | tuple[int, int, int] | None = None,
    memory_limit: int | str | None = None,
    timeout: float | None = None,
) -> ShardedArray:
    """C = A @ B as a ShardedArray on the same mesh.

    algorithm
        One of ``td.algorithms``; default: the first that takes the operands as they lie.
    kernel, tile
        How each rank multiplies its blocks: see ``td.tile.matmul``.
    memory_limit
        Bytes a rank may hold (default: what the workers have). A plan that needs more raises
        DoesNotFitError before anything runs.

    ``C.traffic`` and ``C.memory`` hold what was predicted and what the workers counted.
    Raises PlacementError for shapes, dtypes or placements that do not multiply.
    """
    _check(a, b, kernel)
    name = algorithm or choose(a.tiling, b.tiling)
    if name not in algorithms:
        raise PlacementError(f"no algorithm {name!r}; td.algorithms has {', '.join(algorithms)}")
    plan = algorithms[name](a.tiling, b.tiling)
    cluster, itemsize = a.mesh.cluster, a.dtype.itemsize
    ledger = _ledger(plan, a, b, kernel, tile)
    _refuse_if_too_large(ledger, memory_limit, cluster.memory_limit, plan)
    pieces = [p for rank in (*plan.a, *plan.b) for p in rank]
    predicted = traffic_of(cluster.slots, pieces, itemsize)
    with counting(cluster, timeout) as counted:
        blocks = _run(plan, a, b, kernel, tile)
        cluster.wait(blocks, f"{name} product {a.shape} @ {b.shape}", timeout)
    resident = {"A": a.block_bytes, "B": b.block_bytes}
    return ShardedArray(
        a.mesh, plan.result, a.dtype, tuple(blocks), name,
        traffic=Both(predicted, counted.traffic),
        memory=Both(ledger, counted.ledger(resident)),
        seconds=counted.seconds,
    )  # fmt: skip


def _run(plan: Plan, a: ShardedArray, b: ShardedArray, kernel: str, tile: Any) -> list[Future]:
    """One task per rank: its pieces of A and of B meet, and its block of C comes out."""
    cluster, blocks = a.mesh.cluster, []
    operands = [
        (array, pieces, list(array.tiling.coordinates()), Sender(cluster, name))
        for array, pieces, name in ((a, plan.a, "A"), (b, plan.b, "B"))
    ]
    for rank, at in enumerate(plan.result.coordinates()):
        parts, where = [], []
        for operand, (array, pieces, owners, sender) in enumerate(operands):
            for piece in pieces[rank]:
                index = within(piece.region, array.tiling.region(owners[piece.source]))
                block = array.blocks[piece.source]
                if piece.source != rank:
                    block, index = sender.send(block, index), (slice(None), slice(None))
                parts.append(block)
                where.append((operand, piece.region, index))
        blocks.append(
            cluster.submit(
                rank, _multiply, plan.result.region(at), a.dtype.str, where, kernel, tile,
                cluster.backend, *parts, name=f"multiply_{plan.algorithm}",
            )
        )  # fmt: skip
    return blocks


def _multiply(
    region: Region,
    dtype: str,
    where: list[tuple[int, Region, tuple[slice, ...]]],
    kernel: str,
    tile: Any,
    backend: str,
    *parts: Any,
) -> Any:
    """One block of C, on its worker: the sum over the summed dimension, in ascending order."""
    (top, bottom), (left, right) = region
    c = namespace(backend).zeros((bottom - top, right - left), dtype)  # [I_X, J_Y]
    pieces: tuple[list, list] = ([], [])
    for (operand, held, index), part in zip(where, parts, strict=True):
        pieces[operand].append((held, part[index]))
    for ((i0, i1), (ka0, ka1)), a in sorted(pieces[0], key=lambda p: p[0]):
        for ((kb0, kb1), (j0, j1)), b in sorted(pieces[1], key=lambda p: p[0]):
            k0, k1 = max(ka0, kb0), min(ka1, kb1)
            if k0 < k1:
                tile_matmul(
                    a[:, k0 - ka0 : k1 - ka0],  # [I_X, K part]
                    b[k0 - kb0 : k1 - kb0, :],  # [K part, J_Y]
                    kernel=kernel,
                    tile=tile,
                    out=c[i0 - top : i1 - top, j0 - left : j1 - left],
                    accumulate=True,
                )
    return c


def _check(a: Any, b: Any, kernel: str) -> None:
    for name, x in (("A", a), ("B", b)):
        if not isinstance(x, ShardedArray):
            raise TypeError(
                f"{name} is a {type(x).__name__}; td.matmul multiplies sharded arrays: "
                f"td.distribute(x, mesh, placements) makes one, td.tile.matmul takes plain arrays"
            )
        if x.ndim != 2:
            raise PlacementError(
                f"{name} has {x.ndim} dimensions, a product needs 2; reshape it before distributing"
            )
        if x.dtype.kind != "f":
            raise PlacementError(
                f"{name} is {x.dtype}, products are floating point; distribute "
                f"{name}.astype('float32') or 'float64'"
            )
    if a.mesh.cluster is not b.mesh.cluster:
        raise PlacementError(
            f"A is on {a.mesh.cluster} and B on another, {b.mesh.cluster}; distribute both on one"
        )
    if a.mesh != b.mesh:
        raise PlacementError(f"A lies on {a.mesh} and B on {b.mesh}; distribute both on one mesh")
    if a.shape[1] != b.shape[0]:
        raise PlacementError(
            f"A {a.shape} has {a.shape[1]} columns and B {b.shape} has {b.shape[0]} rows, they "
            f"must be equal; transpose one of them?"
        )
    if a.dtype != b.dtype:
        raise PlacementError(
            f"A is {a.dtype} and B is {b.dtype}, they must be equal; convert one with astype"
        )
    takes = kernels[kernel].dtypes if kernel in kernels else ()
    if takes and a.dtype.name not in takes:
        others = [name for name, info in kernels.items() if a.dtype.name in info.dtypes]
        raise PlacementError(
            f"the kernel {kernel!r} takes {', '.join(takes)}, A and B are {a.dtype}; use kernel="
            f"{' or '.join(map(repr, others)) or 'another'}, or convert them with astype"
        )


def _ledger(plan: Plan, a: ShardedArray, b: ShardedArray, kernel: str, tile: Any) -> Ledger:
    """What every rank holds: its operands, what it fetches, what it cuts for others, its C."""
    size, depth, cut, rows = a.dtype.itemsize, a.shape[1], _cut_elements(plan, a, b), []
    for rank, at in enumerate(plan.result.coordinates()):
        fetched = sum(p.size for p in (*plan.a[rank], *plan.b[rank]) if p.source != rank)
        m, n = plan.result.block_shape(at)
        work = workspace(max(1, m), max(1, n), depth, size, kernel, tile, accumulate=True)
        extent = "rows x columns x itemsize"
        mine = [
            Row(rank, "A", ALWAYS, a.block_bytes[rank], extent),
            Row(rank, "B", ALWAYS, b.block_bytes[rank], extent),
            Row(rank, "fetched panels", "product", fetched * size, "pieces held elsewhere"),
            Row(rank, "cut pieces", "product", cut[rank] * size, "sent pieces that are no blocks"),
            Row(rank, "C", "product", m * n * size, extent),
            Row(rank, "tile workspace", "product", work, f"td.tile.workspace, {kernel}"),
        ]
        runtime = RUNTIME + sum(row.bytes for row in mine) // 50
        rows += [*mine, Row(rank, "runtime", "product", runtime, "8 MiB + 2 %", _SEEN)]
    return Ledger.of(rows)


def _cut_elements(plan: Plan, a: ShardedArray, b: ShardedArray) -> list[int]:
    """Per rank, the elements that it copies because others need a part of its block."""
    cut = [0] * a.mesh.ranks
    for array, pieces in ((a, plan.a), (b, plan.b)):
        owners = [array.tiling.region(at) for at in array.tiling.coordinates()]
        sent = {p for of_rank in pieces for p in of_rank if p.source != p.destination}
        for source, region in {(p.source, p.region) for p in sent}:
            if region != owners[source]:
                cut[source] += prod(stop - start for start, stop in region)
    return cut


def _refuse_if_too_large(ledger: Ledger, asked: int | str | None, has: int, plan: Plan) -> None:
    allowed = has if asked is None else parse_bytes(asked)
    if ledger.peak > allowed:
        rank, _, tensor = ledger.binding
        enough = -(-ledger.peak * plan.result.ranks // max(1, allowed))
        raise DoesNotFitError(
            f"{plan.algorithm}: rank {rank} would hold {format_bytes(ledger.peak)}, mostly "
            f"{tensor}, allowed are {format_bytes(allowed)}; take a mesh of at least {enough} "
            f"ranks, or a larger memory_limit"
        )
