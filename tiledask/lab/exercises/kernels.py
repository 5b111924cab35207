"""Functions to write for one product: a tile loop, run on ragged shapes; Cannon's shifts, on grids.

answer(a, b, tile) -> c               every element of C against exact sums, every tile product
answer(row, column, a, b) -> block    every block of C, and what each call moved
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from tiledask.errors import CollectiveError, RuleError
from tiledask.lab.exercises.exercise import a_function, exercise, none_wrong, on_ranks, span
from tiledask.lab.judging import Target
from tiledask.tile import Tile, traffic

__all__ = ["CountedOperand", "cannon", "repaired_kernel"]

Kernel = Callable[[np.ndarray, np.ndarray, Tile], np.ndarray]
SHAPES = ((4, 6, 8), (7, 5, 3), (1, 1, 1), (1, 9, 4), (10, 1, 7), (13, 11, 9))
"""(m, n, k): tiles divide the first, and leave rests of the others."""
TILES = ((2, 3, 4), (4, 4, 4), (5, 2, 3), (16, 16, 16))


class CountedOperand(np.ndarray):
    """An operand that counts what is multiplied of it.

    >>> log = []
    >>> a, b = (CountedOperand.of(np.ones((4, 4), np.float32), log) for _ in "ab")
    >>> _ = a[:2] @ b
    >>> log
    [((2, 4), (4, 4))]
    """

    log: list[tuple[tuple[int, ...], ...]]
    """The shapes of both operands of each product."""

    @classmethod
    def of(cls, x: np.ndarray, log: list[Any]) -> "CountedOperand":
        counted = x.view(cls)
        counted.log = log
        return counted

    def __array_finalize__(self, parent: Any) -> None:
        self.log = getattr(parent, "log", [])

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if ufunc is np.matmul:
            self.log.append(tuple(np.shape(x) for x in inputs))
        outs = options.pop("out", None)
        if outs is not None:
            options["out"] = tuple(map(_plain, outs))
        return getattr(ufunc, method)(*map(_plain, inputs), **options)

    def __array_function__(self, called: Any, types: Any, args: Any, options: Any) -> Any:
        if called is np.dot:  # of matrices the same
            return np.matmul(*args, **options)
        return super().__array_function__(called, types, args, options)

    def dot(self, other: Any, out: Any = None) -> Any:
        return np.matmul(self, other, out=out)


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, CountedOperand) else x


@exercise("repaired-kernel", read=a_function)
def repaired_kernel(kernel: Kernel) -> list[Target]:
    """Write a function (a, b, (tm, tn, tk)) -> a @ b that multiplies tile by tile, or repair one.

    It is run on whole numbers, whose sums are exact, in shapes that the tile divides and shapes
    that it does not. Every product of tiles is seen: none may be larger than the tile, and as many
    bytes are loaded as the formula of `td.tile.traffic` says."""
    elements, large, far = 0, 0, 0
    where: list[tuple[bool, str]] = []
    why: dict[str, list[str]] = {"large": [], "far": []}
    for (m, n, k), tile in product(SHAPES, TILES):
        rng = np.random.default_rng([m, n, k])
        a, b = (rng.integers(1, 10, shape).astype(np.float32) for shape in ((m, k), (k, n)))
        c, log = _run(kernel, a, b, tile)
        at = f"for {a.shape} @ {b.shape} in tiles of {tile}"
        wrong = c != a @ b
        if wrong.any():
            elements += int(np.count_nonzero(wrong))
            where.append((bool(wrong.all()), f"{_located(wrong, tile)}, {at}"))
        sizes = [shapes for shapes in log if not _within(shapes, tile)]
        large += len(sizes)
        why["large"] += [f"{x} @ {y} is larger than a tile {at}" for x, y in sizes]
        wanted = traffic(m, n, k, tile, a.itemsize).loaded
        loaded = sum(a.itemsize * int(np.prod(s)) for shapes in log for s in shapes)
        far += abs(loaded - wanted)
        if loaded != wanted:
            side = "too many: something is loaded twice"
            if loaded < wanted and sizes:
                side = "too few: products larger than a tile load less"
            elif loaded < wanted:
                side = "too few: what is counted is @, np.matmul and np.dot of parts of a and b"
            why["far"].append(f"{loaded:,} bytes are loaded, the formula has {wanted:,}, {side}")
    # what is wrong in a part of C says more than what is wrong everywhere
    located = [said for _, said in sorted(where, key=lambda pair: pair[0])]
    return [
        none_wrong("wrong elements of C", located[:1], elements),
        none_wrong("products larger than a tile", why["large"][:1], large),
        none_wrong("bytes loaded beside the formula", why["far"][:1], far),
    ]


def _run(kernel: Kernel, a: np.ndarray, b: np.ndarray, tile: Tile) -> tuple[np.ndarray, list[Any]]:
    log: list[Any] = []
    left, right = (CountedOperand.of(x.copy(), log) for x in (a, b))
    try:
        c = np.asarray(_plain(kernel(left, right, tile)))
    except Exception as error:  # whatever a kernel under repair raises
        name = getattr(kernel, "__name__", "the kernel")
        raise RuleError(
            f"{name} raised {type(error).__name__} for {a.shape} @ {b.shape} in tiles of {tile}: "
            f"{error}"
        ) from error
    if c.shape != (len(a), b.shape[1]):
        raise RuleError(
            f"{a.shape} @ {b.shape} is {(len(a), b.shape[1])}, and the kernel returned {c.shape} "
            f"in tiles of {tile}"
        )
    return c, log


def _located(wrong: np.ndarray, tile: Tile) -> str:
    """Where C is wrong, and whether that is the last tile alone."""
    if wrong.all():
        return "all of C is wrong"
    sides = []
    for what, axis, side in (("row", 0, tile[0]), ("column", 1, tile[1])):
        numbers, size = np.nonzero(wrong)[axis], wrong.shape[axis]
        rest = size % side
        last = f", the last tile, which has {rest} of {side}" * bool(
            rest and numbers.min() == size - rest
        )
        sides.append(span(what, numbers) + last)
    return f"C is wrong in {' and '.join(sides)}"


def _within(shapes: tuple[tuple[int, ...], ...], tile: Tile) -> bool:
    """Whether a product multiplies no more than a tile of A by a tile of B."""
    (tm, tn, tk), (a, b) = tile, shapes
    return len(a) == len(b) == 2 and a[0] <= tm and a[1] <= tk and b[0] <= tk and b[1] <= tn


# -- Cannon ----------------------------------------------------------------------------------------

BLOCK = (4, 3, 2)
"""(m, k, n) of a block's product."""
MOST = 2 * (3 * 2 + 2 * 9)
"""Blocks that move on 3 x 3: of A and of B, two rows of three in the skew, then all nine twice."""


@exercise("cannon", read=a_function)
def cannon(answer: Callable[..., Any]) -> list[Target]:
    """Write a function (row, column, a, b) -> a rank's block of C, from its blocks of A and B.

    ``row`` and ``column`` are its groups; its place in one is its coordinate along the other. It is
    run on 1 x 1, 2 x 2 and 3 x 3 ranks, with whole numbers; what it sends is counted."""
    (m, k, n), wrong, others, moved = BLOCK, [], 0, 0.0
    for p in (1, 2, 3):
        rng = np.random.default_rng(p)
        shapes = ((m * p, k * p), (k * p, n * p))
        a, b = (rng.integers(-4, 5, shape).astype(float) for shape in shapes)

        def program(rank: Any, a: np.ndarray = a, b: np.ndarray = b) -> np.ndarray:
            i, j = rank.coordinates
            mine = a[m * i : m * i + m, k * j : k * j + k], b[k * i : k * i + k, n * j : n * j + n]
            return np.asarray(answer(rank.group(1), rank.group(0), *(x.copy() for x in mine)))

        done = _shifted(answer, program, p)
        for (i, j), found in zip(np.ndindex(p, p), done.results, strict=True):
            if found.shape != (m, n):
                raise RuleError(f"a block of C has {[m, n]} numbers, got {[*found.shape]} back")
            if not np.array_equal(found, (a @ b)[m * i : m * i + m, n * j : n * j + n]):
                wrong.append(f"rank ({i}, {j}) of {p} x {p} has another block than C's")
        others += sum(record.kind not in ("send", "recv") for record in done.records)
        # a block of A and one of B, of different sizes, move together: count in both
        moved = 2 * sum(record.sent for record in done.records) / (8 * (m * k + k * n))
    return [
        none_wrong("wrong blocks of C", wrong[:1], len(wrong)),
        Target("calls that are no shift", 0, others, 0),
        Target("blocks moved on 3 x 3", MOST, moved),
    ]


def _shifted(answer: Callable[..., Any], program: Callable[[Any], Any], p: int) -> Any:
    try:
        return on_ranks(answer, program, p, p)
    except RuleError as error:
        if not isinstance(error.__cause__, CollectiveError):
            raise
        raise RuleError(
            f"on {p} x {p} ranks one waits for a block that none sends to it: all ranks of a row "
            f"shift equally often, each time by the same places, and so do those of a column"
        ) from error
