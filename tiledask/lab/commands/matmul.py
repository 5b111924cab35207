"""`tiledask matmul`: a product predicted, and run on workers beside its prediction."""

import argparse
import re
import sys
from dataclasses import replace
from math import isqrt, prod
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.lab.commands.options import Run
from tiledask.plan.data import meant
from tiledask.plan.products.product import algorithms
from tiledask.plan.products.product_plan import PANEL
from tiledask.plan.units import divisors, format_bytes
from tiledask.plan.whole import whole_number

__all__ = ["run_matmul"]

ALGORITHMS = [name for name in algorithms if name != "local"]
COUNTED = 70_000_000
"""The most of k x workers x (rows + columns) of them: panels of k are counted one by one, ~5 s."""
LOCAL = "it moves nothing: it takes A cut by rows alone or B by columns alone, no blocks"


def run_matmul(args: argparse.Namespace) -> Run:
    """The product that was asked for, predicted and, unless --no-run, run; 1 if a claim fails."""
    import tiledask as td
    from tiledask.distributed.products.explain import ProductQuestion
    from tiledask.lab.check import Comparison
    from tiledask.lab.claims import RandomProduct, product_rows
    from tiledask.tile import as_dtype

    (m, n, k), mesh, dtype = _shape(args.size), _mesh(args.workers), as_dtype(args.dtype)
    _check(args, k, mesh, dtype.name)
    algorithm, kernel, tile = args.algorithm, args.kernel, args.tile
    grid, code = (td.Shard(0), td.Shard(1)), 0
    result: dict[str, Any] = {"m": m, "n": n, "k": k, "dtype": dtype.name}
    result |= {"mesh": mesh, "algorithm": algorithm}
    title = (
        f"{m:,} x {k:,} by {k:,} x {n:,} (m {m:,}, n {n:,}, k {k:,}) {dtype.name}, "
        f"{2 * m * n * k / 1e9:,.4g} GFLOP, by {algorithm} on {mesh[0]} x {mesh[1]} workers"
    )
    if args.no_run:
        shapes = td.Tiling((m, k), mesh, grid), td.Tiling((k, n), mesh, grid)
        found = ProductQuestion(*shapes, dtype, kernel, tile).weigh(sys.maxsize)
        why = f"{algorithm} was asked for; without a run no times are compared."
        yield title
        choice: Any = found[algorithm]
        runtime = max(choice.ledger.by_tensor(d)["runtime"] for d in choice.ledger.places)
        yield (
            f"{format_bytes(choice.traffic.total)} move between workers, "
            f"{format_bytes(choice.received)} to the one that receives most; the fullest holds "
            f"{format_bytes(choice.peak)}, of which {format_bytes(runtime)} are for BLAS, "
            f"interpreter and allocator."
        )
    else:
        problem = RandomProduct.random(m, n, k, dtype.name)
        with td.start_cluster(workers=prod(mesh), device=args.device, quiet=True) as cluster:
            over = td.Mesh(cluster, mesh)
            a, b = (td.distribute(x, over, grid) for x in (problem.a, problem.b))
            c = td.matmul(a, b, algorithm=algorithm, kernel=kernel, tile=tile)
            rows = product_rows(problem, c, kernel, tile, algorithm)
            found = td.explain(a, b, kernel=kernel)
        compared, why = Comparison(f"{title}, kernel {kernel}", rows), found.why
        yield compared.table
        result |= compared.to_dict()
        code = 0 if compared.ok else 1
    result["begins"] = (
        f"A and B begin in {mesh[0]} x {mesh[1]} blocks, one of each on every worker. Counted: "
        "bytes between workers, once, where they arrive; the blocks' way there before is not."
    )
    yield result["begins"]
    found = replace(found, chosen=algorithm, why=why)
    takes = "What every algorithm takes: bytes to one worker and in all, the fullest worker"
    yield replace(found.table, title=takes)
    for row in found.choices:
        if row.plan is None:
            yield f"{row.algorithm} refused: {row.why_not if row.algorithm != 'local' else LOCAL}"
    facts = found.to_dict()
    chosen = next(row for row in facts["choices"] if row["algorithm"] == algorithm)
    return code, result | {"predicted": chosen, "explain": facts}


def _check(args: argparse.Namespace, k: int, mesh: tuple[int, int], dtype: str) -> None:
    """Refuse what would only come to light on workers."""
    from tiledask.tile.table import lookup

    if args.algorithm not in ALGORITHMS:
        raise ConfigError(
            f"no algorithm {short(args.algorithm)}; {meant(args.algorithm, ALGORITHMS)}there are "
            f"{', '.join(ALGORITHMS)}"
        )
    most = COUNTED // (prod(mesh) * sum(mesh))
    if k > max(most, PANEL):
        raise ConfigError(
            f"panels of {PANEL} of the inner size k are counted one by one: on {mesh[0]} x "
            f"{mesh[1]} workers k may be {most:,} at most, got {k:,}; take a smaller k, or fewer "
            f"workers"
        )
    if dtype not in (takes := lookup(args.kernel).dtypes):
        raise ConfigError(
            f"--kernel {args.kernel} takes {', '.join(takes)}, got --dtype {dtype}; take one of "
            f"these, or another kernel"
        )


def _shape(sizes: list[str]) -> tuple[int, int, int]:
    """m, n and k: of one size, or of two matrices as written."""
    words = " ".join(sizes or ["4096"])
    if one := re.fullmatch(r"-?\d{1,18}", words):
        m = n = k = int(one[0])
    elif two := re.fullmatch(r"(\d{1,18})x(\d{1,18}) (\d{1,18})x(\d{1,18})", words):
        m, k, inner, n = map(int, two.groups())
        if k != inner:
            raise ConfigError(
                f"A has {k:,} columns and B {inner:,} rows, and these must agree; take "
                f"{sizes[0]} {k}x{n}, or {m}x{inner} {sizes[1]}"
            )
    else:
        raise ConfigError(
            f"a product takes N, or A and B such as 2048x1024 1024x4096; got {short(words)}"
        )
    for size in (m, n, k):
        whole_number("a size", size, 1)
    return m, n, k


def _mesh(workers: int) -> tuple[int, int]:
    """Rows and columns of workers, as square as their number allows."""
    workers = whole_number("--workers", workers, 1, 4096)
    rows = max(d for d in divisors(workers) if d <= isqrt(workers))
    return rows, workers // rows
