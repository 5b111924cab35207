"""Write a tile kernel, or repair one: it is run on ragged shapes, its result and loads checked.

answer(a, b, tile) -> c      every element of C against exact sums   |  targets
                             every tile product counted              |
"""

import inspect
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from tiledask.errors import RuleError
from tiledask.lab.exercises.products.placements import span
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.judging.reading import function
from tiledask.tile import Tile, traffic

__all__ = ["CountedOperand", "repaired_kernel"]

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
    def of(cls, x: np.ndarray, log: list) -> "CountedOperand":
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
            options["out"] = tuple(_plain(x) for x in outs)
        return getattr(ufunc, method)(*map(_plain, inputs), **options)

    def __array_function__(self, called: Any, types: Any, args: Any, options: Any) -> Any:
        if called is np.dot:  # of matrices the same
            return np.matmul(*args, **options)
        return super().__array_function__(called, types, args, options)

    def dot(self, other: Any, out: Any = None) -> Any:
        return np.matmul(self, other, out=out)


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, CountedOperand) else x


def repaired_kernel(given: Kernel | None = None) -> Exercise:
    """Write a function (a, b, (tm, tn, tk)) -> a @ b that multiplies tile by tile; ``given`` has
    faults, or there is none yet.

    It is run on whole numbers, whose sums are exact, in shapes that the tile divides and shapes
    that it does not. Every product of tiles is seen: none may be larger than the tile, and bytes
    loaded beyond the formula of `td.tile.traffic`, or below, are counted.
    """

    def measure(answer: Kernel) -> list[Target]:
        elements, products, loads = [], [], []  # (how many, the remark) of each case
        for shape, tile in product(SHAPES, TILES):
            a, b = _operands(*shape)
            c, log = _run(answer, a, b, tile)
            at = f"for {a.shape} @ {b.shape} in tiles of {tile}"
            wrong = bool((c != a @ b).any())
            if wrong:
                count = int(np.count_nonzero(c != a @ b))
                # what is wrong in a part of C says more than what is wrong everywhere
                place = 0 if count < c.size else len(elements)
                elements.insert(place, (count, f"{_located(c, a, b, tile)}, {at}"))
            large = [shapes for shapes in log if not _within(shapes, tile)]
            if large:
                sizes = " @ ".join(map(str, large[0]))
                products.append((len(large), f"{sizes} is larger than a tile {at}"))
            wanted = traffic(*a.shape[:1], b.shape[1], a.shape[1], tile, a.itemsize).loaded
            loaded = sum(a.itemsize * int(np.prod(s)) for shapes in log for s in shapes)
            if loaded != wanted:
                side = "too few: a part of A or B is never multiplied"
                if loaded > wanted:
                    side = "too many: something is loaded twice"
                elif large:
                    side = "too few: products larger than a tile load less"
                elif not wrong:
                    side = "too few: what is counted is @, np.matmul and np.dot of a and b's parts"
                far = f"{loaded:,} bytes are loaded, the formula has {wanted:,}, {side}, {at}"
                loads.append((abs(loaded - wanted), far))
        return [
            _first("wrong elements of C", elements),
            _first("products larger than a tile", products),
            _first("bytes loaded beside the formula", loads),
        ]

    return Exercise(
        name="repair the kernel" if given else "write the tile loop",
        form=(
            "a function such as def mine(a, b, tile): ..., of which the result is an array like "
            "a @ b, for example answer = mine"
        ),
        hints=(
            "The verdict says which elements are wrong, and for which shapes. Which rows and "
            "columns of tiles are they in?",
            "Where a tile doesn't divide the matrix the last one is smaller, and has to be done "
            "all the same: look at where each loop ends.",
            "What a step along k computes belongs to what the steps before it left in the same "
            "elements of C. And range(0, n, tn) reaches every start, slices end with the array.",
        ),
        measured=measure,
        read=function,
    )


def _first(name: str, found: list[tuple[int, str]]) -> Target:
    """The target that there is none; of those there are, the first one's remark."""
    return Target(name, 0, sum(n for n, _ in found), 0, remarks=[text for _, text in found[:1]])


def _located(c: np.ndarray, a: np.ndarray, b: np.ndarray, tile: Tile) -> str:
    """Where C is wrong, and what its wrong elements have in common."""
    right = a @ b
    wrong, (m, n), k, (tm, tn, tk) = c != right, right.shape, a.shape[1], tile
    rows, columns = np.nonzero(wrong)
    if wrong.all():
        said = "all of C is wrong"
        ends = range(0, k, tk)
        steps = [a[:, p : p + tk] @ b[p : p + tk] for p in ends]
        if len(steps) > 1 and np.array_equal(c, steps[-1]):
            return f"{said}: it has the last of {len(steps)} steps along k alone"
        if len(steps) > 1 and np.array_equal(c, sum(steps[:-1])):
            return f"{said}: the last of {len(steps)} steps along k is lacking"
        return said
    whole = wrong[np.unique(rows)].all() or wrong[:, np.unique(columns)].all()
    by_rows = bool(wrong[np.unique(rows)].all())
    what, numbers, size, side = ("row", rows, m, tm) if by_rows else ("column", columns, n, tn)
    if not whole:
        return f"C is wrong in {span('row', rows)}, {span('column', columns)}"
    said = f"{span(what, numbers)} of C {'is' if len(set(numbers)) == 1 else 'are'} wrong"
    if size % side and numbers.min() == size - size % side:
        return f"{said}: the last tile, which has {size % side} of {side} {what}s"
    return said


def _operands(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers of 1 to 9, so that no product and no sum is zero by chance."""
    rng = np.random.default_rng([m, n, k])
    return tuple(rng.integers(1, 10, shape).astype(np.float32) for shape in ((m, k), (k, n)))


def _run(kernel: Kernel, a: np.ndarray, b: np.ndarray, tile: Tile) -> tuple[np.ndarray, list]:
    log: list = []
    shape = a.shape[0], b.shape[1]
    try:
        c = np.asarray(
            _plain(kernel(CountedOperand.of(a.copy(), log), CountedOperand.of(b.copy(), log), tile))
        )
    except Exception as error:  # whatever a kernel under repair raises
        name = getattr(kernel, "__name__", "the kernel")
        raise RuleError(
            f"{name}{_signature(kernel)} raised {type(error).__name__} for {a.shape} @ {b.shape} "
            f"in tiles of {tile}: {error}"
        ) from error
    if c.shape != shape:
        raise RuleError(
            f"{a.shape} @ {b.shape} is {shape}, and the kernel returned {c.shape} in tiles of "
            f"{tile}"
        )
    return c, log


def _signature(kernel: Kernel) -> str:
    try:
        return str(inspect.signature(kernel))
    except (TypeError, ValueError):
        return "(...)"


def _within(shapes: tuple[tuple[int, ...], ...], tile: Tile) -> bool:
    """Whether a product multiplies no more than a tile of A by a tile of B."""
    tm, tn, tk = tile
    (a, b) = shapes
    return len(a) == len(b) == 2 and a[0] <= tm and a[1] <= tk and b[0] <= tk and b[1] <= tn
