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
from tiledask.errors import ConfigError
from tiledask.lab.puzzles.fields import choice, size, whole
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.collectives.cost import even
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.product import plan_product
from tiledask.plan.products.product_plan import ProductPlan
from tiledask.plan.units import format_bytes

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


def _plan(m: int, n: int, k: int, over: Grid) -> ProductPlan:
    a, b = (Tiling(shape, over, PLACED) for shape in ((m, k), (k, n)))
    return plan_product("3d", a, b, grid=over)


def _formula(m: int, n: int, k: int, over: Grid, item: int) -> int:
    p, q, r = over
    return item * (m * k * (q - 1) + k * n * (p - 1) + m * n * (r - 1))


def _weighed(m: int, n: int, k: int, dtype: str, workers: int) -> dict[Grid, tuple[int, int]]:
    """Grid -> (bytes on the fullest worker, bytes that move in all)."""
    item = np.dtype(dtype).itemsize
    found = {}
    for p, q, r in td.formulas.grids(workers, 3):
        if p <= min(m, k) and q <= min(n, k) and r <= min(m, k):
            plan = _plan(m, n, k, (p, q, r))
            moved = plan.traffic(item).total
            found[p, q, r] = ledger_of(plan, np.dtype(dtype)).peak, moved
    if not found:
        raise ConfigError(
            f"{workers} workers are more than {m} x {n} x {k} can be cut for; take fewer"
        )
    return found


def _best(found: dict[Grid, tuple[int, int]], memory: int) -> Grid | None:
    """What fits and moves least; the fewest layers of those that move as much."""
    fitting = [over for over, (peak, _) in found.items() if peak <= memory]
    return min(fitting, key=lambda over: (found[over][1], over[2]), default=None)


def work(m: int, n: int, k: int, dtype: str, workers: int, memory: int) -> WorkedAnswer:
    """Every grid by its formula, which fit, and the least of all."""
    item = np.dtype(dtype).itemsize
    found = _weighed(m, n, k, dtype, workers)
    lines = [
        f"p x q x r = {workers}; moved in all: {item} B x (m k (q - 1) + k n (p - 1) + "
        f"m n (r - 1))",
        *(
            f"{p} x {q} x {r}, {_kind((p, q, r))}: {item} x ({m * k:,} x {q - 1} + {k * n:,} x "
            f"{p - 1} + {m * n:,} x {r - 1}) = {format_bytes(_formula(m, n, k, (p, q, r), item))} "
            f"in {q - 1 + p - 1 + r - 1} ring steps; {format_bytes(peak)} on a worker"
            f"{'' if peak <= memory else ', too much'}"
            for (p, q, r), (peak, _) in found.items()
        ),
    ]
    best = _best(found, memory)
    values: dict[str, Any] = {
        "moved": {"x".join(map(str, over)): moved for over, (_, moved) in found.items()},
        "fit": sum(peak <= memory for peak, _ in found.values()),
        "best": best and list(best),
    }
    if best is None:
        least = format_bytes(min(peak for peak, _ in found.values()))
        return WorkedAnswer(
            f"None of {len(found)} grids fits {format_bytes(memory)}: each needs {least} or more "
            f"on a worker. Take more workers, or stream the product from files.",
            lines,
            values,
        )
    p, q, r = best
    parts = [
        f"{extent} in {parts} parts of {'/'.join(map(str, sorted(set(even(extent, parts)))))}"
        for extent, parts in zip((m, n, k), best, strict=True)
    ]
    lines.append(f"uneven extents differ by one: {', '.join(parts)}")
    return WorkedAnswer(
        f"{p} x {q} x {r}, {_kind(best)}, of {len(found)} grids: {format_bytes(found[best][1])} "
        f"move, the least of all that fit {format_bytes(memory)}.",
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
    a, b = (rng.integers(-2, 3, shape).astype(dtype) for shape in ((m, k), (k, n)))
    rows = []
    for name, over in tried.items():
        mesh = td.Mesh(cluster, over)
        A, B = (td.distribute(x, mesh, PLACED) for x in (a, b))
        C = td.matmul(A, B, algorithm="3d", grid=over)
        title = f"{'x'.join(map(str, over))}, {name}"
        said = _formula(m, n, k, over, C.dtype.itemsize)
        counted, memories = C.traffic.measured.total, C.memory
        same = bool((td.to_numpy(C) == a @ b).all())
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
            if found[over][0] <= memory
        )
        said, note = _formula(m, n, k, best, C.dtype.itemsize), "of those that were run and fit"
        rows.append(Claim("least moved", said, found[best][1], least, "bytes", "equal", note))
    return Comparison(f"{m} x {n} x {k} {dtype} over {workers} workers, by kind of cut", rows)


QUESTION = CourseQuestion(
    number=7,
    title="High-Level Decomposition in Tensor Parallelism",
    asked="A product of 768 x 768 x 768 is cut over 4 workers. Which ways are there to cut it, "
    "what does each move, and which is best?",
    inputs={
        "m": Input(768, 1500, whole(1, 8192), "rows of A"),
        "n": Input(768, 300, whole(1, 8192), "columns of B"),
        "k": Input(768, 130, whole(1, 8192), "columns of A, and rows of B"),
        "dtype": Input("float32", "float64", choice(("float32", "float64")), "type of a number"),
        "workers": Input(4, 3, whole(2, 64), "workers"),
        "memory": Input(40_000_000, 12_000_000, size, "bytes of a worker"),
    },
    work=work,
    run=run,
    workers=lambda workers, **_: workers,
)
