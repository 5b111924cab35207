"""The high level of the two-level product: plan it, check that it fits, run it, count it.

plan/products     who multiplies what, and what must move       arithmetic
here              lend the blocks, one task per rank, count     the client
worker.py         a rank's loop over its panels                 a worker
transport/        parts of blocks from worker to worker         memory, messages
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any
from uuid import uuid4

from tiledask.distributed.arrays.array import Both, ShardedArray, operators
from tiledask.distributed.arrays.mesh import Mesh
from tiledask.distributed.cluster.progress import Progress, announced, ended, watching
from tiledask.distributed.cluster.room import room_of
from tiledask.distributed.deadlines import bounded
from tiledask.distributed.products.explain import (
    Choice,
    Explanation,
    ProductQuestion,
    kernel_of,
    refusal,
)
from tiledask.distributed.products.rates import rates_of
from tiledask.distributed.products.worker import product_stages, run_stages
from tiledask.distributed.retry import call_again
from tiledask.errors import PlacementError
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.products.product import algorithms, moves_nothing
from tiledask.plan.units import parse_bytes
from tiledask.plan.whole import whole_number
from tiledask.tile.levels import as_tile

__all__ = ["algorithms", "explain", "matmul"]

SMALL = {"numpy": 1 / 16, "cupy": 0}
"""The share of a worker's memory that a product may take unasked: Dask leaves it more than that
between where it pauses a worker, which then begins nothing, and where it kills one."""


@bounded
def matmul(
    a: ShardedArray,
    b: ShardedArray,
    *,
    algorithm: str | None = None,
    panel: int | None = None,
    kernel: str = "blas",
    tile: int | tuple[int, int, int] | None = None,
    memory_limit: int | str | None = None,
    timeout: float | None = None,
    progress: Progress = None,
    **elsewhere: Any,
) -> ShardedArray:
    """C = A @ B as a ShardedArray; A [..., k] may have leading dimensions, B is [k, n] or [k].

    Two dask.arrays give a lazy dask.array (`tiledask.distributed.products.lazy.multiply`), two
    files a file (``out=``, ``cluster=`` and more, see
    `tiledask.distributed.out_of_core.multiply.multiply_stored`); of the options below they take
    ``kernel`` and ``tile``, and files ``memory_limit``, ``timeout`` and ``progress``.

    algorithm
        One of ``td.algorithms``. Default: what moves nothing if the operands lie so, otherwise
        the fastest that `td.explain` predicts on the mesh of A and B.
    panel
        Columns of A per panel, for an algorithm that has panels.
    kernel, tile
        How each rank multiplies its blocks: see ``td.tile.matmul``.
    memory_limit
        Bytes a rank may hold, A's and B's blocks included. Never more than the workers have: what
        their processes hold beside A and B is measured first, unless the product is small beside
        that, and where Dask would move blocks to disk, pause or kill a worker
        (``distributed.worker.memory``) no plan may come. A plan that needs more raises
        DoesNotFitError before anything runs, with what would fit.
    progress
        A bar of the panels that are done, or none. Default: on a terminal, after two seconds.

    Half types are summed in float32 and rounded once; only partial sums that are left as they are
    (Partial()) are rounded before. ``C.traffic`` and ``C.memory`` hold what was predicted and
    what the workers counted, ``C.tiles`` the bytes that their tile kernels loaded (None for BLAS,
    which cannot be looked into). If a worker dies meanwhile, what it had is made again, with the
    same bits.
    Raises PlacementError for shapes, dtypes or placements that do not multiply, DeadlineError after
    ``timeout`` seconds (default 300): A and B stay as they are; ClusterLostError for an operand
    that was itself a product, or redistributed, and went with a worker since: make it again.
    """
    if multiply_others := _of_other_arrays(a, b):
        given: dict[str, Any] = {"algorithm": algorithm, "panel": panel, "tile": tile}
        given |= {"memory_limit": memory_limit, "timeout": timeout, "progress": progress}
        given = {name: value for name, value in given.items() if value is not None} | elsewhere
        made: ShardedArray = multiply_others(a, b, kernel=kernel, **given)
        return made
    if elsewhere:
        raise TypeError(
            f"a product of sharded arrays has no {', '.join(elsewhere)}: out and cluster are for "
            f"files, td.open_array(path)"
        )
    question = _question(a, b, kernel, algorithm, panel, tile)
    if algorithm is None and moves_nothing(a.tiling, b.tiling):
        question = replace(question, algorithm="local")
    multiply = partial(_multiply, a, b, question, memory_limit, timeout, progress)
    what, blocks = f"the operands of {a.shape} @ {b.shape}", (*a.blocks, *b.blocks)
    return call_again(a.mesh.cluster, blocks, what, timeout, multiply)


def explain(
    a: ShardedArray, b: ShardedArray, *, kernel: str = "blas", memory_limit: int | str | None = None
) -> Explanation:
    """Every algorithm for A @ B, what it would take, and which is chosen and why; nothing runs.

    The arguments are those of `matmul`. Per algorithm: bytes to the rank that receives most and
    in all, messages, peak bytes of the fullest rank, and seconds from this cluster's measured
    rates.
    """
    question, cluster = _question(a, b, kernel), a.mesh.cluster
    room = room_of(cluster, [a.blocks, b.blocks], memory_limit)
    return replace(question, rates=rates_of(cluster, a.dtype)).weigh(room.bytes)


def _question(
    a: Any,
    b: Any,
    kernel: str,
    algorithm: str | None = None,
    panel: int | None = None,
    tile: Any = None,
) -> ProductQuestion:
    """The question of a product of arrays that multiply, with the rates that are known by now."""
    if not isinstance(a, ShardedArray) or not isinstance(b, ShardedArray):
        raise TypeError(
            f"A is a {type(a).__name__} and B a {type(b).__name__}; td.matmul multiplies two "
            f"sharded arrays, two dask.arrays or two files: td.distribute(x, mesh, placements) "
            f"makes the first, td.open_array(path) the last; td.tile.matmul takes plain arrays"
        )
    cluster = a.mesh.cluster
    if cluster is not b.mesh.cluster or a.mesh.at != b.mesh.at:
        raise PlacementError(
            f"rank r of A and of B must be in one slot, and theirs are {a.mesh.at} of "
            f"{cluster} and {b.mesh.at} of {b.mesh.cluster}; distribute both on one mesh"
        )
    kernel = kernel_of(a.dtype, b.dtype, kernel, cluster.backend)
    if algorithm is not None and algorithm not in algorithms:
        raise PlacementError(
            f"no algorithm {algorithm!r}; td.algorithms has {', '.join(algorithms)}"
        )
    return ProductQuestion(
        a.tiling,
        b.tiling,
        a.dtype,
        kernel,
        None if tile is None else as_tile(tile),
        cluster.backend == "numpy" and len({*cluster.hosts}) > 1,
        cluster.rates.get(a.dtype.name),
        algorithm,
        None if panel is None else whole_number("panel", panel, 1, error=PlacementError),
    )


def _of_other_arrays(a: Any, b: Any) -> Callable[..., Any] | None:
    """What multiplies dask.arrays or files; None for sharded arrays and for what nothing takes."""
    from tiledask.distributed.out_of_core.stored import StoredArray

    if isinstance(a, StoredArray) and isinstance(b, StoredArray):
        from tiledask.distributed.out_of_core.multiply import multiply_stored

        return multiply_stored
    dask_array = sys.modules.get("dask.array")
    if dask_array and any(isinstance(x, dask_array.Array) for x in (a, b)):
        from tiledask.distributed.products.lazy import multiply

        return multiply
    return None


# -- running a plan ------------------------------------------------------------------------------


def _page(choice: Choice) -> dict[str, Any]:
    """What the dashboard's page shows of a product that begins."""
    plan = choice.plan
    a, b = ("x".join(f"{n:,}" for n in tiling.shape) for tiling in (plan.a, plan.b))
    return {
        "kind": "product",
        "lanes": [f"worker {rank}" for rank in range(plan.ranks)],
        "facts": {"product": f"{a} @ {b}", "algorithm": f"{choice.algorithm} {choice.options}"},
        "predicted": {
            "panels": [len(mine) for mine in plan.panels],
            "seconds": choice.seconds if choice.busy else None,
            "busy": list(choice.busy) or None,
        },
    }


def _choose(
    a: ShardedArray, b: ShardedArray, question: ProductQuestion, memory_limit: int | str | None
) -> Choice:
    """The plan to run. Unless it is SMALL, workers are asked what they hold beside A and B."""
    cluster, has = a.mesh.cluster, a.mesh.cluster.memory_limit
    if question.algorithm is None:  # one algorithm's time is worth no measuring
        question = replace(question, rates=rates_of(cluster, a.dtype))
    found = question.weigh(has if memory_limit is None else min(has, parse_bytes(memory_limit)))
    if not found.chosen or found[found.chosen].peak > SMALL[cluster.backend] * has:
        room = room_of(cluster, [a.blocks, b.blocks], memory_limit)
        if not found.chosen or max(each.peak for each in found.choices) > room.bytes:
            found = question.weigh(room.bytes)
        if not found.chosen:
            raise refusal(found, room, question)
    return found[found.chosen]


def _multiply(
    a: ShardedArray,
    b: ShardedArray,
    question: ProductQuestion,
    memory_limit: int | str | None,
    timeout: float | None,
    progress: Progress,
) -> ShardedArray:
    """C of operands that are there, with what was predicted and what the workers counted."""
    cluster, slots, run, begun = a.mesh.cluster, a.mesh.at, uuid4().hex, perf_counter()
    choice = _choose(a, b, question, memory_limit)
    what, page = f"{choice.algorithm} product {a.shape} @ {b.shape}", _page(choice)
    with (
        announced(cluster, run, **page) as on_page,
        watching(progress, run, page["predicted"]["panels"], what, cluster) as watched,
    ):
        stages = product_stages(choice.plan, a.dtype.name, cluster.backend)
        followed = run if on_page or watched else ""
        how = {"kernel": question.kernel, "tile": question.tile, "run": followed}
        arrays = {"A": a.blocks, "B": b.blocks}
        done = run_stages(cluster, slots, stages, arrays, what, timeout, **how)
    mesh, result = a.mesh, choice.plan.result
    if result.mesh != mesh.shape:
        mesh = Mesh(cluster, result.mesh, slots=slots)
    held = {"A": a.block_bytes, "B": b.block_bytes, "process growth": done.growth}
    rows = [Row(r, name, ALWAYS, n) for name, each in held.items() for r, n in enumerate(each)]
    c = ShardedArray(
        mesh,
        result,
        a.dtype,
        done.blocks,
        choice.algorithm,
        Both(choice.traffic.on(cluster.hosts, slots), done.traffic),
        Both(choice.ledger, Ledger.of(rows)),
        perf_counter() - begun,
        done.tiles,
    )
    ended(cluster, run)
    return c


operators["@"] = matmul
