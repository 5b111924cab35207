"""1 and 7: a product cut into blocks over workers and tiles within; every way to cut it.

p x q x r workers cut m, n and k        A comes to the q workers of a row,    m k (q - 1)
of the m x n x k multiplications        B to the p workers of a column,       k n (p - 1)
                                        r partial sums of C are added up      m n (r - 1)
"""

from functools import partial
from itertools import product
from typing import Any

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.products.needed import ledger_of
from tiledask.errors import ConfigError, PlacementError
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
from tiledask.tile.backend import accumulator, as_dtype

__all__ = ["DTYPES", "QUESTION_1", "QUESTION_7", "blocked", "exact_product"]

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


def work_1(
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


def run_1(
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


QUESTION_1 = CourseQuestion(
    number=1,
    title="Two-Level Tile-Based Approach in Tensor Parallelism",
    asked="C = A B, {m} x {k} by {k} x {n} in {dtype}, is computed by {workers} workers. How is it "
    "cut into blocks over the workers and into tiles within them, and what does each level move?",
    inputs={
        "m": Input(1024, whole(1, 65536), "rows of A"),
        "n": Input(1024, whole(1, 65536), "columns of B"),
        "k": Input(1024, whole(1, 65536), "columns of A, and rows of B"),
        "dtype": Input("float32", choice(DTYPES), "type of a number"),
        "workers": Input(4, whole(2, 64), "workers"),
        "memory": Input(40_000_000, size, "bytes of a worker"),
        "blocking": Input("auto", grid, "rows x columns of workers; auto: moves least"),
        "tile": Input(128, whole(1, 1024), "extent of a tile"),
    },
    work=work_1,
    run=run_1,
    workers=lambda workers, **_: workers,
    largest_run={"m": 8192, "n": 8192, "k": 8192},
)
Grid_7 = tuple[int, int, int]
PLACED = td.Shard(0), td.Shard(1), td.Replicate()
"""A and B over p and q; each of r layers has them."""


def _kind(over: Grid_7) -> str:
    cut = [axis for axis, parts in enumerate(over) if parts > 1]
    if len(cut) == 1:
        return ("1-D, rows of A", "1-D, columns of B", "1-D, the inner dimension")[cut[0]]
    if over[2] == 1:
        return "2-D"
    return "3-D" if len(set(over)) == 1 else "2.5-D"


def _name(over: Grid_7) -> str:
    return f"{' x '.join(map(str, over))}, {_kind(over)}"


def _plan(m: int, n: int, k: int, over: Grid_7) -> ProductPlan:
    a, b = (Tiling(shape, over, PLACED) for shape in ((m, k), (k, n)))
    return plan_product("2.5d", a, b)


def _from_blocks(m: int, n: int, k: int, over: Grid_7) -> ProductPlan | None:
    """The same from A and B in plain blocks, without copies; None if they are too small for it."""
    square = min(td.formulas.grids(over[0] * over[1] * over[2], 2), key=lambda g: (max(g), g))
    a, b = (Tiling(shape, square, PLACED[:2]) for shape in ((m, k), (k, n)))
    try:
        return plan_product("3d", a, b, grid=over)
    except PlacementError:
        return None


def _formula(m: int, n: int, k: int, over: Grid_7, dtype: str) -> int:
    (p, q, r), of = over, as_dtype(dtype)
    panels, sums = m * k * (q - 1) + k * n * (p - 1), m * n * (r - 1)
    return of.itemsize * panels + accumulator(of).itemsize * sums


def _weighed_7(
    m: int, n: int, k: int, dtype: str, workers: int
) -> dict[Grid_7, tuple[Ledger, int]]:
    """Grid -> (what each worker holds, bytes that all receive)."""
    of, found = as_dtype(dtype), {}
    sizes = of.itemsize, accumulator(of).itemsize
    for p, q, r in td.formulas.grids(workers, 3):
        if p <= min(m, k) and q <= min(n, k) and r <= min(m, k):
            plan = _plan(m, n, k, (p, q, r))
            found[p, q, r] = ledger_of(plan, of), plan.traffic(*sizes).total
    if not found:
        raise ConfigError(
            f"{workers} workers are more than {m} x {n} x {k} can be cut for; take fewer"
        )
    return found


def _best(found: dict[Grid_7, tuple[Ledger, int]], memory: int) -> Grid_7 | None:
    """What fits and moves least; the fewest layers of those that move as much."""
    fitting = [over for over, (ledger, _) in found.items() if ledger.peak <= memory]
    return min(fitting, key=lambda over: (found[over][1], over[2]), default=None)


def work_7(m: int, n: int, k: int, dtype: str, workers: int, memory: int) -> WorkedAnswer:
    """Every grid by its formula, which fit, and the least of all."""
    found, of = _weighed_7(m, n, k, dtype, workers), as_dtype(dtype)
    item, wide = of.itemsize, accumulator(of).itemsize
    lines = [
        f"p x q x r = {workers}: A and B lie in p x q blocks, a copy on each of the r layers; "
        f"workers receive {item} B x (m k (q - 1) + k n (p - 1)) + {wide} B x m n (r - 1)",
    ]
    for over, (ledger, moved) in found.items():
        line = f"{_name(over)}: {format_bytes(moved)} received in {sum(over) - 3} ring steps, "
        line += f"{format_bytes(ledger.peak)} held at most{', too much' * (ledger.peak > memory)}"
        if over[2] > 1 and (plain := _from_blocks(m, n, k, over)):
            grid = "{} x {}".format(*plain.a.mesh)
            spread = format_bytes(plain.traffic(item, wide).total)
            line += f"; {spread} received from {grid} blocks without copies"
        lines.append(line)
    best = _best(found, memory)
    values: dict[str, Any] = {
        "moved": {"x".join(map(str, over)): moved for over, (_, moved) in found.items()},
        "held": {"x".join(map(str, over)): ledger.peak for over, (ledger, _) in found.items()},
        "fit": sum(ledger.peak <= memory for ledger, _ in found.values()),
        "best": best and list(best),
    }
    if best is None:
        least = min((ledger for ledger, _ in found.values()), key=lambda ledger: ledger.peak)
        return WorkedAnswer(
            f"None of {count(len(found), 'grid')} fits {format_bytes(memory)}: each needs "
            f"{format_bytes(least.peak)} or more on a worker ({held(least)}). Take more workers, "
            f"or stream the product from files.",
            lines,
            values,
        )
    (p, q, r), (ledger, moved) = best, found[best]
    parts = (each(even(*cut)) for cut in zip((m, n, k), best, strict=True))
    lines += [
        f"{_name(best)}: {item} x ({m * k:,} x {q - 1} + {k * n:,} x {p - 1}) + {wide} x {m * n:,} "
        f"x {r - 1} = {moved:,} B; a worker multiplies {' x '.join(map('({})'.format, parts))}",
        f"held there by the fullest worker: {held(ledger)}",
    ]
    return WorkedAnswer(
        f"{_name(best)}, of {count(len(found), 'grid')}: workers receive {format_bytes(moved)} in "
        f"all, the least of all that fit {format_bytes(memory)}, and hold "
        f"{format_bytes(ledger.peak)}.",
        lines,
        values,
    )


def run_7(
    cluster: Cluster, m: int, n: int, k: int, dtype: str, workers: int, memory: int
) -> Comparison:
    """One grid of each kind multiplied on workers, and what moved."""
    found = _weighed_7(m, n, k, dtype, workers)
    tried = {_kind(over): over for over in found}
    if (best := _best(found, memory)) is not None:
        tried[_kind(best)] = best
    rng = np.random.default_rng(7)
    a, b = (rng.integers(-2, 3, shape).astype(as_dtype(dtype)) for shape in ((m, k), (k, n)))
    c, rows = exact_product(a, b), []
    for name, over in tried.items():
        mesh = td.Mesh(cluster, over)
        A, B = (td.distribute(x, mesh, PLACED) for x in (a, b))
        C = td.matmul(A, B, algorithm="2.5d")
        title = f"{'x'.join(map(str, over))}, {name}"
        said = _formula(m, n, k, over, dtype)
        counted, memories = C.traffic.measured.total, C.memory
        same = bool((td.to_numpy(C) == c).all())
        rows += [
            Claim(f"{title}: moved", said, found[over][1], counted, "bytes", "equal"),
            Claim(f"{title}: C is A B, every number", measured=same, rule="true"),
            Claim(f"{title}: on the fullest worker", memories.predicted.peak, None,
                  memories.measured.peak, "bytes", "at most"),
        ]  # fmt: skip
    if best is not None:
        least = min(
            row.measured
            for row, over in zip(rows[::3], tried.values(), strict=True)
            if found[over][0].peak <= memory
        )
        said, note = _formula(m, n, k, best, dtype), "of those that were run and fit"
        rows.append(Claim("least moved", said, found[best][1], least, "bytes", "equal", note))
    return Comparison(f"{m} x {n} x {k} {dtype} over {workers} workers, by kind of cut", rows)


QUESTION_7 = CourseQuestion(
    number=7,
    title="High-Level Decomposition in Tensor Parallelism",
    asked="A product, {m} x {k} by {k} x {n} in {dtype}, is cut over {workers} workers. Which ways "
    "are there to cut it, what does each move, and which is best?",
    inputs={
        "m": Input(768, whole(1, 65536), "rows of A"),
        "n": Input(768, whole(1, 65536), "columns of B"),
        "k": Input(768, whole(1, 65536), "columns of A, and rows of B"),
        "dtype": Input("float32", choice(DTYPES), "type of a number"),
        "workers": Input(4, whole(2, 64), "workers"),
        "memory": Input(40_000_000, size, "bytes of a worker"),
    },
    work=work_7,
    run=run_7,
    workers=lambda workers, **_: workers,
    largest_run={"m": 8192, "n": 8192, "k": 8192},
)
