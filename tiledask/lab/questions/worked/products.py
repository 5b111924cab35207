"""1, 4, 7 and 10: one large product over workers: where it is cut, what moves, any plan judged.

p x q x r workers cut m, n and k        A comes to the q workers of a row,    m k (q - 1)
of the m x n x k multiplications        B to the p workers of a column,       k n (p - 1)
                                        r partial sums of C are added up      m n (r - 1)
"""

from itertools import product
from math import isqrt, prod
from typing import Any

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.products.needed import ledger_of
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab.claim import Claim
from tiledask.lab.questions.question import Input, WorkedAnswer, grid, question
from tiledask.lab.questions.shares import count, each, held
from tiledask.lab.questions.worked import runs
from tiledask.lab.table import Comparison
from tiledask.plan.collectives.cost import even
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.product import plan_product
from tiledask.plan.products.product_plan import RUNTIME, ProductPlan
from tiledask.plan.units import format_bytes
from tiledask.tile.backend import accumulator, as_dtype

ITEM = 4
"""Bytes of a float32."""
DTYPES = "float32", "float64", "float16", "bfloat16"
MNK = {
    "m": Input("rows of A", 1, 65536, run=8192),
    "n": Input("columns of B", 1, 65536, run=8192),
    "k": Input("columns of A, and rows of B", 1, 65536, run=8192),
}
DTYPE = Input("type of a number", choices=DTYPES)
WORKERS = Input("workers", 2, 64)
MEMORY = Input("bytes of a worker")
Grid = tuple[int, ...]


def planned(
    m: int, n: int, k: int, over: Grid, algorithm: str = "summa", placed: Any = runs.GRID
) -> ProductPlan:
    """The plan of A B by an algorithm, both placed so on that grid of workers."""
    a, b = (Tiling(shape, over, placed) for shape in ((m, k), (k, n)))
    return plan_product(algorithm, a, b)


def loaded(m: int, n: int, k: int, over: Grid, tile: int, item: int = ITEM) -> int:
    """Bytes of A and B that the tiles of all workers load, each with a block of C."""
    blocks = product(even(m, over[0]), even(n, over[1]))
    return sum(td.tile.traffic(rows, columns, k, tile, item).loaded for rows, columns in blocks)


def by_name(grids: list[Grid]) -> dict[str, Grid]:
    return {"x".join(map(str, over)): over for over in grids}


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b of small whole numbers, each sum exact and rounded once, to their type."""
    right: np.ndarray = (a.astype("float64") @ b.astype("float64")).astype(a.dtype)
    return right


@question(
    1,
    "Two-Level Tile-Based Approach in Tensor Parallelism",
    "C = A B, {m} x {k} by {k} x {n} in {dtype}, is computed by {workers} workers. How is it cut "
    "into blocks over the workers and into tiles within them, and what does each level move?",
    **MNK,
    dtype=DTYPE,
    workers=WORKERS,
    memory=MEMORY,
    blocking=Input("rows x columns of workers; auto: moves least", check=grid),
    tile=Input("extent of a tile", 1, 1024),
)
def two_levels(
    m: int = 1024,
    n: int = 1024,
    k: int = 1024,
    dtype: str = "float32",
    workers: int = 4,
    memory: int = 40_000_000,
    blocking: str = "auto",
    tile: int = 128,
) -> WorkedAnswer:
    """Every blocking with what it moves and holds; the tiles of the blocks of the chosen one."""
    of, flops = as_dtype(dtype), 2 * m * n * k
    item, found = of.itemsize, {}
    for over in td.formulas.grids(workers, 2):
        if over[0] <= min(m, k) and over[1] <= min(n, k):
            plan = planned(m, n, k, over)
            found[over] = plan.traffic(item).total, ledger_of(plan, of, "tiled", tile)
    if not found:
        raise ConfigError(f"{workers} workers are more than {m} x {n} x {k} can be cut for")
    names = by_name([*found])
    if blocking not in ("auto", *names):
        raise ConfigError(
            f"a blocking of {blocking} is not one of {workers} workers with something for each; "
            f"there are {', '.join(names)}"
        )
    asked = [names[blocking]] if blocking in names else [*found]
    fitting = [over for over in asked if found[over][1].peak <= memory]
    if not fitting:
        raise ConfigError(
            f"a worker would hold {format_bytes(min(found[over][1].peak for over in asked))} at "
            f"least, of {format_bytes(memory)}: its blocks, and {format_bytes(RUNTIME)} of "
            f"runtime; more workers, or more memory"
        )
    p, q = chosen = min(fitting, key=lambda over: (found[over][0], found[over][1].peak))
    (moved, ledger), rows, columns = found[chosen], even(m, p), even(n, q)
    loads, fullest = loaded(m, n, k, chosen, tile, item), (max(rows), max(columns))
    most = td.tile.traffic(*fullest, k, tile, item).loaded
    blocks = f"{each(rows)} rows x {each(columns)} columns"
    in_tile, in_all = tile / item, flops / loads
    reuse = f"{in_all:.4g} FLOP a byte"
    if round(in_all, 3) != round(in_tile, 3):
        reuse += f" (a full tile {in_tile:.4g})"
    lines = [
        f"the whole product: {m} x {k} by {k} x {n}, 2 m n k = {flops:,} FLOP",
        f"level 1, over {workers} workers: A, B and C lie in p x q blocks; workers receive "
        f"(m k (q - 1) + k n (p - 1)) x {item} B",
        *(
            f"{a} x {b}: {format_bytes(sent)} received in all, a worker holds "
            f"{format_bytes(by.peak)} at most"
            f"{f', above {format_bytes(memory)}' * (by.peak > memory)}"
            for (a, b), (sent, by) in found.items()
        ),
        f"chosen: {p} x {q}. A worker's block of C is {blocks}; the fullest holds {held(ledger)}",
        f"level 2, in a worker with {fullest[0]} x {fullest[1]}: tiles of {tile}; A is loaded "
        f"ceil({fullest[1]} / {tile}) = {count(-(-fullest[1] // tile), 'time')}, B "
        f"ceil({fullest[0]} / {tile}) = {count(-(-fullest[0] // tile), 'time')}",
        f"{format_bytes(most)} loaded by that worker, {format_bytes(loads)} by all: {flops:,} / "
        f"{loads:,} = {in_all:.4g} FLOP a byte",
        f"a full tile: 2 x {tile}^3 FLOP / (2 x {tile}^2 x {item} B) = {tile} / {item} = "
        f"{in_tile:.4g} FLOP a byte, whatever the blocking",
    ]

    def run(cluster: Cluster) -> Comparison:
        """The product counted at both levels; then with another tile, and another blocking."""
        kernel, extent = ("tiled", tile) if cluster.backend == "numpy" else ("smem_tiled", 32)
        other = extent // 2 if extent > 16 else 2 * extent
        fits = [over for over in found if found[over][1].peak <= memory]
        a, b = runs.whole_numbers(1, (m, k), (k, n), dtype=of)
        right, rows = exact(a, b), []
        for over, t in ((chosen, extent), (chosen, other), (fits[-1], extent)):
            how: dict[str, Any] = {
                "algorithm": "summa",
                "kernel": kernel,
                "tile": t,
                "memory_limit": memory,
            }
            C = runs.multiplied(cluster, a, b, over, **how)
            name, loads = f"{over[0]}x{over[1]}, tiles of {t}", loaded(m, n, k, over, t, item)
            rows += runs.product_claims(name, C, right, found[over][0], loads)
        return Comparison(f"{m} x {n} x {k} {dtype} on {workers} workers, {kernel}", rows)

    return WorkedAnswer(
        f"{p} x {q} blocks of {blocks}, each in tiles of {tile}: workers receive "
        f"{format_bytes(moved)} in all and hold {format_bytes(ledger.peak)} at most; tiles load "
        f"{format_bytes(loads)}, {reuse}.",
        lines,
        {
            "blocking": [p, q],
            "sent": moved,
            "held": ledger.peak,
            "loaded": loads,
            "intensity": in_tile,
            "intensity in all": in_all,
            "room left": memory - ledger.peak,
        },
        run,
        workers,
    )


# -- 4: methods for a matrix that no device holds --------------------------------------------------


def grid_of(ranks: int) -> tuple[int, int]:
    """The most square grid of ``ranks``, not taller than wide.

    >>> grid_of(2), grid_of(4), grid_of(6)
    ((1, 2), (2, 2), (2, 3))
    """
    p = next(p for p in range(isqrt(ranks), 0, -1) if ranks % p == 0)
    return p, ranks // p


@question(
    4,
    "Analyzing Distributed Matrix Multiplication Strategies",
    "Y = X A, {rows} x {inner} by {inner} x {columns}, is to be computed on {gpus} GPUs with "
    "{room} each for A. Which methods make it possible, and what do they send?",
    rows=Input("rows of X, the tokens", run=4096),
    inner=Input("columns of X, and rows of A", run=4096),
    columns=Input("columns of A", run=4096),
    gpus=Input("GPUs", 2, 64),
    room="bytes for A on a GPU",
)
def methods(
    rows: int = 64, inner: int = 512, columns: int = 384, gpus: int = 2, room: int = 500_000
) -> WorkedAnswer:
    """What each method holds of A and sends, and which of them bring A below the room.

    Rings: an all-reduce of s bytes over n sends 2 (n - 1) s, a broadcast or a sum (n - 1) s.
    """
    if min(rows, inner, columns) < gpus:
        raise ConfigError(
            f"rows, inner and columns are cut over {gpus} GPUs, and the smallest is "
            f"{min(rows, inner, columns)}; give each of them {gpus} or more"
        )
    x, a, y = (ITEM * s * n for s, n in ((rows, inner), (inner, columns), (rows, columns)))
    (p, q), ring, S, R = grid_of(gpus), 2 * (gpus - 1), td.Shard, td.Replicate()
    panels = (q - 1) * x + (p - 1) * a
    # method -> (fullest block of A, bytes forward, of what, bytes backward, of what)
    table = {
        "columns of A": (
            (inner, -(-columns // gpus)), 0, "nothing", ring * x, "all-reduce of dX"),
        "rows of A": (
            (-(-inner // gpus), columns), ring * y, "all-reduce of Y", 0, "nothing"),
        "rows of X": ((inner, columns), 0, "nothing", ring * a, "all-reduce of dA"),
        "whole layers": ((inner, columns), y, "Y to the next GPU", y, "dY back"),
        "blocks of A": (
            (-(-inner // p), -(-columns // q)), panels, "panels of X and A", 2 * panels,
            "panels of X and A again, sums of dX and dA"),
    }  # fmt: skip
    held_of = {name: ITEM * prod(block) for name, (block, *_) in table.items()}
    fitting = [name for name, nbytes in held_of.items() if nbytes <= room]
    cut = [name for name, nbytes in held_of.items() if nbytes < a]
    lines = [
        f"A is {inner} x {columns} x {ITEM} B = {format_bytes(a)}; a GPU has {format_bytes(room)} "
        f"for it",
        *(
            f"{name}: {block[0]} x {block[1]} x {ITEM} B = {format_bytes(held_of[name])} of A on "
            f"the fullest GPU; forward {up_of}, {format_bytes(up)}; backward {down_of}, "
            f"{format_bytes(down)}"
            for name, (block, up, up_of, down, down_of) in table.items()
        ),
        f"bytes are those of all {gpus} GPUs together: an all-reduce of s bytes sends "
        f"2 ({gpus} - 1) s, a broadcast or a sum ({gpus} - 1) s",
    ]
    verdict = f"{', '.join(fitting)} fit {format_bytes(room)}" if fitting else "none fits"
    if len(fitting) == len(table):
        verdict = f"all fit {format_bytes(room)}: A is not too large"
    placed: dict[str, tuple[Any, Any, str]] = {
        "columns of A": ((gpus,), ((R,), (S(1),)), "gather"),
        "rows of A": ((gpus,), ((S(1),), (S(0),)), "gather"),
        "rows of X": ((gpus,), ((S(0),), (R,)), "gather"),
        "blocks of A": ((p, q), (runs.GRID, runs.GRID), "summa"),
    }

    def run(cluster: Cluster) -> Comparison:
        """The forward pass of each method that one product shows, with whole numbers."""
        claims = []
        X, A = runs.whole_numbers(4, (rows, inner), (inner, columns), most=3)
        for name, (over, how, algorithm) in placed.items():
            Y = runs.multiplied(cluster, X, A, over, how, algorithm=algorithm)
            parts = [Y.traffic]
            if any(isinstance(each, td.Partial) for each in Y.placements):
                for to in (S(0), R):  # an all-reduce: shares are summed, and gathered
                    Y = td.redistribute(Y, (to,))
                    parts.append(Y.traffic)
            fullest = max(td.distribute(A, td.Mesh(cluster, over), how[1]).block_bytes)
            sent = (sum(part.predicted.total for part in parts),
                    sum(part.measured.total for part in parts))  # fmt: skip
            same = bool((td.to_numpy(Y) == X @ A).all())
            fits = held_of[name] <= room, None, fullest <= room
            claims += [
                Claim(f"{name}: A on the fullest GPU", held_of[name], None, fullest, "bytes",
                      "equal"),
                Claim(f"{name}: A fits", *fits, rule="equal"),
                Claim(f"{name}: sent forward", table[name][1], *sent, "bytes", "equal"),
                Claim(f"{name}: Y has one device's bits", measured=same, rule="true"),
            ]  # fmt: skip
        return Comparison(f"Y = X A on {gpus} workers", claims)

    return WorkedAnswer(
        f"Those that cut A itself: {', '.join(cut)}. Splitting X, or giving each GPU layers of its "
        f"own, leaves all {format_bytes(a)} of A on a GPU. Of {len(table)}, {verdict}.",
        lines,
        {
            "bytes of A": held_of,
            "fit": fitting,
            "sent": {name: [up, down] for name, (_, up, _, down, _) in table.items()},
        },
        run,
        gpus,
    )


# -- 7: every way to cut it ------------------------------------------------------------------------

LAYERS = td.Shard(0), td.Shard(1), td.Replicate()
"""A and B over p and q; each of r layers has them."""


def kind(over: Grid) -> str:
    """Of a cut: 1-D, 2-D, 2.5-D or 3-D."""
    cut = [axis for axis, parts in enumerate(over) if parts > 1]
    if len(cut) == 1:
        return ("1-D, rows of A", "1-D, columns of B", "1-D, the inner dimension")[cut[0]]
    if over[2] == 1:
        return "2-D"
    return "3-D" if len({*over}) == 1 else "2.5-D"


@question(
    7,
    "High-Level Decomposition in Tensor Parallelism",
    "A product, {m} x {k} by {k} x {n} in {dtype}, is cut over {workers} workers. Which ways are "
    "there to cut it, what does each move, and which is best?",
    **MNK,
    dtype=DTYPE,
    workers=WORKERS,
    memory=MEMORY,
)
def cuts(
    m: int = 768,
    n: int = 768,
    k: int = 768,
    dtype: str = "float32",
    workers: int = 4,
    memory: int = 40_000_000,
) -> WorkedAnswer:
    """Every grid by its formula, which fit, and the least of all."""
    of = as_dtype(dtype)
    item, wide = of.itemsize, accumulator(of).itemsize
    grids: list[Grid] = [
        (p, q, r)
        for p, q, r in td.formulas.grids(workers, 3)
        if p <= min(m, k) and q <= min(n, k) and r <= min(m, k)
    ]
    if not grids:
        raise ConfigError(
            f"{workers} workers are more than {m} x {n} x {k} can be cut for; take fewer"
        )
    plans = {over: planned(m, n, k, over, "2.5d", LAYERS) for over in grids}
    moved = {over: plan.traffic(item, wide).total for over, plan in plans.items()}
    ledgers = {over: ledger_of(plan, of) for over, plan in plans.items()}
    fitting = [over for over in grids if ledgers[over].peak <= memory]
    best = min(fitting, key=lambda over: (moved[over], over[2]), default=None)
    square = min(td.formulas.grids(workers, 2), key=lambda g: (max(g), g))

    def named(over: Grid) -> str:
        return f"{' x '.join(map(str, over))}, {kind(over)}"

    def line(over: Grid) -> str:
        peak = ledgers[over].peak
        words = (
            f"{named(over)}: {format_bytes(moved[over])} received in {sum(over) - 3} ring steps, "
            f"{format_bytes(peak)} held at most{', too much' * (peak > memory)}"
        )
        if over[2] > 1:
            a, b = (Tiling(shape, square, runs.GRID) for shape in ((m, k), (k, n)))
            try:
                spread = plan_product("3d", a, b, grid=over).traffic(item, wide).total
            except PlacementError:  # too small for it
                return words
            where = "{} x {}".format(*square)
            words += f"; {format_bytes(spread)} received from {where} blocks without copies"
        return words

    def formula(over: Grid) -> int:
        p, q, r = over
        return item * (m * k * (q - 1) + k * n * (p - 1)) + wide * m * n * (r - 1)

    def run(cluster: Cluster) -> Comparison:
        """One grid of each kind multiplied on workers, and what moved."""
        tried = {kind(over): over for over in grids} | ({kind(best): best} if best else {})
        a, b = runs.whole_numbers(7, (m, k), (k, n), dtype=of)
        right, rows, sent = exact(a, b), [], {}
        for name, over in tried.items():
            C = runs.multiplied(cluster, a, b, over, (LAYERS, LAYERS), algorithm="2.5d")
            title = f"{'x'.join(map(str, over))}, {name}"
            rows += runs.product_claims(title, C, right, formula(over))
            sent[over] = C.traffic.measured.total
        if best:
            least = min(nbytes for over, nbytes in sent.items() if over in fitting)
            both, note = (formula(best), moved[best]), "of those that were run and fit"
            rows.append(Claim("least moved", *both, least, "bytes", "equal", note))
        return Comparison(f"{m} x {n} x {k} {dtype} over {workers} workers, by kind of cut", rows)

    lines = [
        f"p x q x r = {workers}: A and B lie in p x q blocks, a copy on each of the r layers; "
        f"workers receive {item} B x (m k (q - 1) + k n (p - 1)) + {wide} B x m n (r - 1)",
        *map(line, grids),
    ]
    values = {
        "moved": {name: moved[over] for name, over in by_name(grids).items()},
        "held": {name: ledgers[over].peak for name, over in by_name(grids).items()},
        "fit": len(fitting),
        "best": best and list(best),
    }
    if best is None:
        least = min(ledgers.values(), key=lambda ledger: ledger.peak)
        return WorkedAnswer(
            f"None of {count(len(grids), 'grid')} fits {format_bytes(memory)}: each needs "
            f"{format_bytes(least.peak)} or more on a worker ({held(least)}). Take more workers, "
            f"or stream the product from files.",
            lines,
            values,
            run,
            workers,
        )
    p, q, r = best
    parts = " x ".join(f"({each(even(*cut))})" for cut in zip((m, n, k), best, strict=True))
    lines += [
        f"{named(best)}: {item} x ({m * k:,} x {q - 1} + {k * n:,} x {p - 1}) + {wide} x {m * n:,} "
        f"x {r - 1} = {moved[best]:,} B; a worker multiplies {parts}",
        f"held there by the fullest worker: {held(ledgers[best])}",
    ]
    return WorkedAnswer(
        f"{named(best)}, of {count(len(grids), 'grid')}: workers receive "
        f"{format_bytes(moved[best])} in all, the least of all that fit {format_bytes(memory)}, "
        f"and hold {format_bytes(ledgers[best].peak)}.",
        lines,
        values,
        run,
        workers,
    )
