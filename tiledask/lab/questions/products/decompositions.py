"""7: every way to cut a product over p workers: 1-D, 2-D, 2.5-D and 3-D are one family.

p x q x r workers cut m, n and k        A comes to the q workers of a row,    m k (q - 1)
of the m x n x k multiplications        B to the p workers of a column,       k n (p - 1)
                                        r partial sums of C are added up      m n (r - 1)
"""

from typing import Any

import numpy as np

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.distributed.products.needed import ledger_of
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab.puzzles.fields import choice, size, whole
from tiledask.lab.questions.products.two_levels import DTYPES, exact_product
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.questions.shares import count, each, held
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.collectives.cost import even
from tiledask.plan.ledger import Ledger
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.product import plan_product
from tiledask.plan.products.product_plan import ProductPlan
from tiledask.plan.units import format_bytes
from tiledask.tile.backend import accumulator, as_dtype

__all__ = ["QUESTION"]

Grid = tuple[int, int, int]
PLACED = td.Shard(0), td.Shard(1), td.Replicate()
"""A and B over p and q; each of r layers has them."""


def _kind(over: Grid) -> str:
    cut = [axis for axis, parts in enumerate(over) if parts > 1]
    if len(cut) == 1:
        return ("1-D, rows of A", "1-D, columns of B", "1-D, the inner dimension")[cut[0]]
    if over[2] == 1:
        return "2-D"
    return "3-D" if len(set(over)) == 1 else "2.5-D"


def _name(over: Grid) -> str:
    return f"{' x '.join(map(str, over))}, {_kind(over)}"


def _plan(m: int, n: int, k: int, over: Grid) -> ProductPlan:
    a, b = (Tiling(shape, over, PLACED) for shape in ((m, k), (k, n)))
    return plan_product("2.5d", a, b)


def _from_blocks(m: int, n: int, k: int, over: Grid) -> ProductPlan | None:
    """The same from A and B in plain blocks, without copies; None if they are too small for it."""
    square = min(td.formulas.grids(over[0] * over[1] * over[2], 2), key=lambda g: (max(g), g))
    a, b = (Tiling(shape, square, PLACED[:2]) for shape in ((m, k), (k, n)))
    try:
        return plan_product("3d", a, b, grid=over)
    except PlacementError:
        return None


def _formula(m: int, n: int, k: int, over: Grid, dtype: str) -> int:
    (p, q, r), of = over, as_dtype(dtype)
    panels, sums = m * k * (q - 1) + k * n * (p - 1), m * n * (r - 1)
    return of.itemsize * panels + accumulator(of).itemsize * sums


def _weighed(m: int, n: int, k: int, dtype: str, workers: int) -> dict[Grid, tuple[Ledger, int]]:
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


def _best(found: dict[Grid, tuple[Ledger, int]], memory: int) -> Grid | None:
    """What fits and moves least; the fewest layers of those that move as much."""
    fitting = [over for over, (ledger, _) in found.items() if ledger.peak <= memory]
    return min(fitting, key=lambda over: (found[over][1], over[2]), default=None)


def work(m: int, n: int, k: int, dtype: str, workers: int, memory: int) -> WorkedAnswer:
    """Every grid by its formula, which fit, and the least of all."""
    found, of = _weighed(m, n, k, dtype, workers), as_dtype(dtype)
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


def run(
    cluster: Cluster, m: int, n: int, k: int, dtype: str, workers: int, memory: int
) -> Comparison:
    """One grid of each kind multiplied on workers, and what moved."""
    found = _weighed(m, n, k, dtype, workers)
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


QUESTION = CourseQuestion(
    number=7,
    title="High-Level Decomposition in Tensor Parallelism",
    asked="A product, {m} x {k} by {k} x {n} in {dtype}, is cut over {workers} workers. Which ways "
    "are there to cut it, what does each move, and which is best?",
    inputs={
        "m": Input(768, 1500, whole(1, 65536), "rows of A"),
        "n": Input(768, 300, whole(1, 65536), "columns of B"),
        "k": Input(768, 130, whole(1, 65536), "columns of A, and rows of B"),
        "dtype": Input("float32", "float64", choice(DTYPES), "type of a number"),
        "workers": Input(4, 3, whole(2, 64), "workers"),
        "memory": Input(40_000_000, 12_000_000, size, "bytes of a worker"),
    },
    work=work,
    run=run,
    workers=lambda workers, **_: workers,
    largest_run={"m": 8192, "n": 8192, "k": 8192},
)
