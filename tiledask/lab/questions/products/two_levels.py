"""1: blocks over workers, tiles within a block; what one level decides, the other does not."""

from functools import partial
from itertools import product
from typing import Any

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.products.needed import ledger_of
from tiledask.errors import ConfigError
from tiledask.lab.product_claims import GRID, RandomProduct, product_rows
from tiledask.lab.puzzles.fields import choice, size, whole
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.questions.readers import grid
from tiledask.lab.questions.shares import count, each, held
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.collectives.cost import even
from tiledask.plan.ledger import Ledger
from tiledask.plan.products.placement import Tiling, split
from tiledask.plan.products.product import plan_product
from tiledask.plan.products.product_plan import RUNTIME, ProductPlan
from tiledask.plan.units import format_bytes
from tiledask.tile.backend import as_dtype

__all__ = ["DTYPES", "QUESTION", "blocked", "exact_product"]

Grid = tuple[int, int]
DTYPES = "float32", "float64", "float16", "bfloat16"


def exact_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b of small whole numbers, each sum exact and rounded once, to their type."""
    return (a.astype("float64") @ b.astype("float64")).astype(a.dtype)


def blocked(m: int, n: int, k: int, over: Grid) -> ProductPlan:
    """The plan of SUMMA on that grid of workers, A, B and C each in blocks."""
    placed = td.Shard(0), td.Shard(1)
    a, b = (Tiling(shape, over, placed) for shape in ((m, k), (k, n)))
    return plan_product("summa", a, b)


def _weighed(m: int, n: int, k: int, over: Grid, dtype: str, tile: int) -> tuple[int, Ledger]:
    """(bytes that all workers receive, what each holds) under this blocking."""
    plan, dtype = blocked(m, n, k, over), as_dtype(dtype)
    return plan.traffic(dtype.itemsize).total, ledger_of(plan, dtype, "tiled", tile)


def _loaded(m: int, n: int, k: int, over: Grid, tile: int, item: int) -> list[int]:
    """Bytes of A and B that the tiles of each worker load."""
    every = product(even(m, over[0]), even(n, over[1]))
    return [td.tile.traffic(rows, columns, k, tile, item).loaded for rows, columns in every]


def _chosen(m, n, k, workers, blocking, tile, memory, dtype) -> tuple[Grid, dict[Grid, tuple]]:
    """(the blocking, every blocking's bytes sent and held): the fitting one that sends least."""
    found = {
        over: _weighed(m, n, k, over, dtype, tile)
        for over in td.formulas.grids(workers, 2)
        if over[0] <= min(m, k) and over[1] <= min(n, k)
    }
    if not found:
        raise ConfigError(f"{workers} workers are more than {m} x {n} x {k} can be cut for")
    named = blocking != "auto"
    asked = [over for over in found if "x".join(map(str, over)) == blocking] if named else [*found]
    if not asked:
        raise ConfigError(
            f"a blocking of {blocking} is not one of {workers} workers with something for each; "
            f"there are {', '.join('x'.join(map(str, over)) for over in found)}"
        )
    fitting = [over for over in asked if found[over][1].peak <= memory]
    if not fitting:
        least = min(found[over][1].peak for over in asked)
        raise ConfigError(
            f"a worker would hold {format_bytes(least)} at least, of {format_bytes(memory)}: its "
            f"blocks, and {format_bytes(RUNTIME)} of runtime; more workers, or more memory"
        )
    return min(fitting, key=lambda over: (found[over][0], found[over][1].peak)), found


def work(
    m: int, n: int, k: int, dtype: str, workers: int, memory: int, blocking: str, tile: int
) -> WorkedAnswer:
    """Every blocking with what it moves and holds; the tiles of the blocks of the chosen one."""
    (p, q), found = _chosen(m, n, k, workers, blocking, tile, memory, dtype)
    item, flops = as_dtype(dtype).itemsize, 2 * m * n * k
    rows, columns = even(m, p), even(n, q)
    moved, ledger = found[p, q]
    loaded = _loaded(m, n, k, (p, q), tile, item)
    blocks = f"{each(rows)} rows x {each(columns)} columns"
    fullest = f"{max(rows)} x {max(columns)}"
    in_tile, in_all = tile / item, flops / sum(loaded)
    reuse = f"{in_all:.4g} FLOP a byte"
    if round(in_all, 3) != round(in_tile, 3):
        reuse += f" (a full tile {in_tile:.4g})"
    lines = [
        f"the whole product: {m} x {k} by {k} x {n}, 2 m n k = {flops:,} FLOP",
        f"level 1, over {workers} workers: A, B and C lie in p x q blocks; workers receive "
        f"(m k (q - 1) + k n (p - 1)) x {item} B",
        *(
            f"{a} x {b}: {format_bytes(sent)} received in all, a worker holds "
            f"{format_bytes(of.peak)} at most"
            f"{'' if of.peak <= memory else f', above {format_bytes(memory)}'}"
            for (a, b), (sent, of) in found.items()
        ),
        f"chosen: {p} x {q}. A worker's block of C is {blocks}; the fullest holds {held(ledger)}",
        f"level 2, in a worker with {fullest}: tiles of {tile}; A is loaded ceil({max(columns)} / "
        f"{tile}) = {count(-(-max(columns) // tile), 'time')}, B ceil({max(rows)} / {tile}) = "
        f"{count(-(-max(rows) // tile), 'time')}",
        f"{format_bytes(max(loaded))} loaded by that worker, {format_bytes(sum(loaded))} by all: "
        f"{flops:,} / {sum(loaded):,} = {in_all:.4g} FLOP a byte",
        f"a full tile: 2 x {tile}^3 FLOP / (2 x {tile}^2 x {item} B) = {tile} / {item} = "
        f"{in_tile:.4g} FLOP a byte, whatever the blocking",
    ]
    return WorkedAnswer(
        f"{p} x {q} blocks of {blocks}, each in tiles of {tile}: workers receive "
        f"{format_bytes(moved)} in all and hold {format_bytes(ledger.peak)} at most; tiles load "
        f"{format_bytes(sum(loaded))}, {reuse}.",
        lines,
        {
            "blocking": [p, q],
            "sent": moved,
            "held": ledger.peak,
            "loaded": sum(loaded),
            "intensity": in_tile,
            "intensity in all": in_all,
            "room left": memory - ledger.peak,
        },
        partial(_owners, m, n, k, (p, q)),
    )


def _owners(m: int, n: int, k: int, over: Grid) -> Any:
    """The figure of which worker holds which block."""
    ranks = np.arange(over[0] * over[1]).reshape(over).tolist()
    return td.plots.owners(
        {
            name: td.plots.Blocks(
                ranks,
                *(
                    [0, *(b for _, b in split(0, n, parts))]
                    for n, parts in zip(shape, over, strict=True)
                ),
            )
            for name, shape in {"A": (m, k), "B": (k, n), "C": (m, n)}.items()
        }
    )


def run(
    cluster: Cluster,
    m: int,
    n: int,
    k: int,
    dtype: str,
    workers: int,
    memory: int,
    blocking: str,
    tile: int,
) -> Comparison:
    """The product counted at both levels; then with another tile, and with another blocking."""
    over, found = _chosen(m, n, k, workers, blocking, tile, memory, dtype)
    kernel = "tiled"
    if cluster.backend == "cupy":
        kernel, tile = "smem_tiled", 32 if tile >= 32 else 16
    rng = np.random.default_rng(1)
    # of small whole numbers, every sum is exact
    a, b = (rng.integers(-2, 3, shape).astype(as_dtype(dtype)) for shape in ((m, k), (k, n)))
    problem = RandomProduct.of(a, b)

    def multiplied(mesh: Grid, tile: int) -> Any:
        a, b = (td.distribute(x, td.Mesh(cluster, mesh), GRID) for x in (problem.a, problem.b))
        return td.matmul(a, b, algorithm="summa", kernel=kernel, tile=tile, memory_limit=memory)

    C = multiplied(over, tile)
    other_tile = tile // 2 if tile > 16 else 2 * tile
    others = [o for o in found if o != over and found[o][1].peak <= memory] or [over]
    retiled, reblocked = multiplied(over, other_tile), multiplied(others[-1], tile)
    same = bool((td.to_numpy(C) == exact_product(a, b)).all())
    slowest = max(spent.multiply for spent in C.spent)
    share = -(-m // over[0]) * -(-n // over[1]) / (m * n)
    flops = 2 * m * n * k
    name = "x".join(map(str, others[-1]))
    rows = [
        *product_rows(problem, C, kernel, tile),
        Claim(
            "C is A B, every number", measured=same, rule="true", note="integers: sums are exact"
        ),
        Claim(
            f"bytes between workers, tiles of {other_tile}",
            C.traffic.predicted.total,
            None,
            retiled.traffic.measured.total,
            "bytes",
            "equal",
            note="level 2 changed, level 1 not",
        ),
        Claim(
            f"FLOP a byte loaded, blocks on {name}",
            flops / sum(_loaded(m, n, k, others[-1], tile, C.dtype.itemsize)),
            None,
            reblocked.tiles.intensity,
            rule="equal",
            note=f"level 1 changed, level 2 not; {over[0]}x{over[1]}: {C.tiles.intensity:.4g}",
        ),
        Claim(
            "GFLOP/s, level 1: all workers, transfers included", measured=flops / C.seconds / 1e9
        ),
        Claim(
            "GFLOP/s, level 2: the tiles of the slowest worker",
            measured=share * flops / slowest / 1e9,
        ),
    ]
    return Comparison(f"{m} x {n} x {k} {dtype} on {over[0]} x {over[1]} workers, {kernel}", rows)


QUESTION = CourseQuestion(
    number=1,
    title="Two-Level Tile-Based Approach in Tensor Parallelism",
    asked="C = A B, {m} x {k} by {k} x {n} in {dtype}, is computed by {workers} workers. How is it "
    "cut into blocks over the workers and into tiles within them, and what does each level move?",
    inputs={
        "m": Input(1024, 768, whole(1, 65536), "rows of A"),
        "n": Input(1024, 768, whole(1, 65536), "columns of B"),
        "k": Input(1024, 768, whole(1, 65536), "columns of A, and rows of B"),
        "dtype": Input("float32", "float64", choice(DTYPES), "type of a number"),
        "workers": Input(4, 2, whole(2, 64), "workers"),
        "memory": Input(40_000_000, 20_000_000, size, "bytes of a worker"),
        "blocking": Input("auto", "1x4", grid, "rows x columns of workers; auto: moves least"),
        "tile": Input(128, 64, whole(1, 1024), "extent of a tile"),
    },
    work=work,
    run=run,
    workers=lambda workers, **_: workers,
    largest_run={"m": 8192, "n": 8192, "k": 8192},
)
