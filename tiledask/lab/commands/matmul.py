"""The words of `tiledask matmul`: a product predicted, and run on workers beside its prediction."""

import argparse
import re
from math import isqrt
from typing import Any

from rich.console import Console

import tiledask as td
from tiledask.distributed.products.explain import Choice, Explanation
from tiledask.errors import ConfigError, short
from tiledask.lab.product_claims import compare_product, predict_product, product_title
from tiledask.lab.table import Grid, say
from tiledask.plan.data import meant
from tiledask.plan.products.product import PANEL
from tiledask.plan.units import divisors, format_bytes, format_seconds
from tiledask.plan.whole import whole_number
from tiledask.tile import as_dtype
from tiledask.tile.table import lookup

__all__ = ["matmul"]

COUNTED = 70_000_000
"""The most of k x workers x (rows + columns) of them: panels of k are counted one by one, ~5 s."""
LOCAL = "moves nothing: it takes A cut by rows alone or B by columns alone, no blocks"
HEAD = ("", "algorithm", "to one", "in all", "messages", "peak", "time", "")


def matmul(args: argparse.Namespace, console: Console) -> tuple[int, dict[str, Any]]:
    """The product that was asked for, predicted and, unless --no-run, run; 1 if a claim fails."""
    shape, mesh = _shape(args.sizes), _mesh(args)
    p, q = mesh
    if shape[2] > (most := COUNTED // (p * q * (p + q))) and shape[2] > PANEL:
        raise ConfigError(
            f"panels of {PANEL} of the inner size k are counted one by one: on {p} x {q} workers k "
            f"may be {most:,} at most, got {shape[2]:,}; take a smaller k, or fewer workers"
        )
    algorithm, dtype = _algorithm(args.algorithm, mesh), as_dtype(args.dtype)
    # a wrong name is no reason to start workers
    takes = lookup(args.kernel).dtypes
    if dtype.name not in takes:
        raise ConfigError(
            f"--kernel {args.kernel} takes {', '.join(takes)}, got --dtype {dtype.name}; take one "
            f"of these, or another kernel"
        )
    given = shape, mesh, dtype.name
    result: dict[str, Any] = dict(zip("mnk", shape, strict=True))
    result |= {"dtype": dtype.name, "mesh": mesh, "algorithm": algorithm}
    code, begins = 0, _begins(mesh)
    if args.no_run:
        found = predict_product(*given, args.kernel, args.tile)
        say(console, product_title(*given, algorithm), wrap=True)
        say(console, _answer(found[algorithm]), wrap=True)
    else:
        table, found = compare_product(*given, algorithm, args.kernel, args.tile, args.device)
        console.print(table)
        result |= table.to_dict()
        code = 0 if table.ok else 1
    say(console, begins, wrap=True)
    _show_algorithms(found, algorithm, console)
    if not args.no_run:
        say(console, f"{found.advice} {found.moved}", wrap=True)
    facts = found.to_dict()
    if args.no_run:
        why = f"{algorithm} was asked for; without a run no times are compared."
        facts |= {"chosen": algorithm, "why": why}
    chosen = next(row for row in facts["choices"] if row["algorithm"] == algorithm)
    return code, result | {"begins": begins, "predicted": chosen, "explain": facts}


def _shape(sizes: list[str]) -> tuple[int, int, int]:
    """m, n and k: of one size, of three, or of two matrices as written."""
    said = (
        "a product takes N, A and B such as 2048x1024 1024x4096, or M N K (A is M x K, B is K x N)"
    )
    pairs = [re.fullmatch(r"(\d{1,18})x(\d{1,18})", size) for size in sizes]
    if len(sizes) == 2 and all(pairs):
        (m, k), (inner, n) = (map(int, each.groups()) for each in pairs if each)
        if k != inner:
            raise ConfigError(
                f"A has {k:,} columns and B {inner:,} rows, and these must agree; take "
                f"{sizes[0]} {k}x{n}, or {m}x{inner} {sizes[1]}"
            )
    else:
        if len(sizes) not in (0, 1, 3) or any(pairs):
            raise ConfigError(f"{said}; got {short(' '.join(sizes))}")
        try:
            numbers = [int(size) for size in sizes]
        except ValueError:
            raise ConfigError(f"{said}; got {short(' '.join(sizes))}") from None
        m, n, k = numbers if len(numbers) == 3 else (numbers or [4096]) * 3
    for size in (m, n, k):
        whole_number("a size", size, 1)
    return m, n, k


def _mesh(args: argparse.Namespace) -> tuple[int, int]:
    """Rows and columns of workers: as given, or as square as their number allows."""
    if args.mesh is None:
        workers = whole_number("--workers", 4 if args.workers is None else args.workers, 1, 4096)
        rows = max(d for d in divisors(workers) if d <= isqrt(workers))
        return rows, workers // rows
    if not re.fullmatch(r"\d{1,9}x\d{1,9}", args.mesh):
        raise ConfigError(f"a mesh is rows x columns, such as 2x2; got {short(args.mesh)}")
    rows, columns = map(int, args.mesh.split("x"))
    whole_number("workers", min(rows, columns), 1)
    if args.workers not in (None, rows * columns):
        raise ConfigError(
            f"--mesh {args.mesh} has {rows * columns} workers and --workers says {args.workers}; "
            f"leave one of them out"
        )
    return rows, columns


def _algorithm(name: str, mesh: tuple[int, int]) -> str:
    if name not in td.algorithms:
        raise ConfigError(
            f"no algorithm {short(name)}; {meant(name, td.algorithms)}there are "
            f"{', '.join(td.algorithms)}"
        )
    if name == "local":
        others = ", ".join(each for each in td.algorithms if each != "local")
        raise ConfigError(
            f"local {LOCAL}; A and B begin in {mesh[0]} x {mesh[1]} blocks, so take one of {others}"
        )
    return name


def _begins(mesh: tuple[int, int]) -> str:
    """Where the operands are, and what is counted."""
    p, q = mesh
    return (
        f"A and B begin in {p} x {q} blocks, one of each on every worker. Counted: bytes between "
        f"workers, once, where they arrive; the blocks' way there at the beginning is not."
    )


def _answer(choice: Choice) -> str:
    assert choice.ledger is not None
    runtime = max(choice.ledger.by_tensor(d)["runtime"] for d in choice.ledger.places)
    return (
        f"{format_bytes(choice.total)} move between workers, {format_bytes(choice.received)} to "
        f"the one that receives most; the fullest holds {format_bytes(choice.peak)}, of which "
        f"{format_bytes(runtime)} are for BLAS, interpreter and allocator."
    )


def _show_algorithms(found: Explanation, algorithm: str, console: Console) -> None:
    """A row for each, with times where rates were measured."""
    rows = []
    for c in found.choices:
        mark = "→" if c.algorithm == algorithm else ""
        if c.plan is None:
            rows.append((mark, c.algorithm, *("—",) * 5, "refused"))
            continue
        note = "" if c.same_mesh else f"C on {'x'.join(map(str, c.plan.result.mesh))}"
        sizes = (format_bytes(each) for each in (c.received, c.total))
        seconds = format_seconds(c.seconds) if c.cost else "—"
        peak = format_bytes(c.peak)
        rows.append((mark, c.algorithm, *sizes, f"{c.messages}", peak, seconds, note))
    bold = [number for number, row in enumerate(rows) if row[0]]
    title = "What every algorithm takes: bytes to one worker and in all, the fullest worker"
    console.print(Grid(HEAD, rows, title, left=(0, 1, 7), bold=bold))
    for c in found.choices:
        if c.plan is None:
            why = f"it {LOCAL}" if c.algorithm == "local" else c.why_not
            say(console, f"{c.algorithm} refused: {why}", wrap=True)
