"""Repair a tile kernel: it is run on ragged shapes, its result and its loads are checked.

answer(a, b, tile) -> c      every element of C against exact sums   |  targets
                             every tile product counted              |
"""

import inspect
from collections.abc import Callable, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots.style import BLUE, PALE, RED, canvas, styled
from tiledask.tile import Tile, traffic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["CountedOperand", "repaired_kernel"]

Kernel = Callable[[np.ndarray, np.ndarray, Tile], np.ndarray]
SHAPES = ((4, 6, 8), (7, 5, 3), (1, 1, 1), (1, 9, 4), (10, 1, 7), (13, 11, 9))
"""(m, n, k): tiles divide the first, and leave rests of the others."""
TILES = ((2, 3, 4), (4, 4, 4), (5, 2, 3), (16, 16, 16))
SHOWN, SHOWN_TILE = ((13, 11, 4), (13, 11, 9)), (5, 4, 4)


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


def _plain(x: Any) -> Any:
    return x.view(np.ndarray) if isinstance(x, CountedOperand) else x


def repaired_kernel(given: Kernel) -> Exercise:
    """Write a function (a, b, (tm, tn, tk)) -> a @ b that multiplies tile by tile; ``given`` has
    faults.

    It is run on whole numbers, whose sums are exact, in shapes that the tile divides and shapes
    that it does not. Every product of tiles is seen: none may be larger than the tile, and bytes
    loaded beyond the formula of `td.tile.traffic`, or below, are counted.
    """

    def measure(answer: Any) -> list[Target]:
        if not callable(answer):
            raise ConfigError(
                f"an answer is a function of a, b and tile that returns a @ b, got {answer!r}"
            )
        wrong = large = beside = 0
        for shape, tile in product(SHAPES, TILES):
            a, b = _operands(*shape)
            c, log = _run(answer, a, b, tile)
            wrong += int(np.count_nonzero(c != a @ b))
            large += sum(not _within(shapes, tile) for shapes in log)
            wanted = traffic(*a.shape[:1], b.shape[1], a.shape[1], tile, a.itemsize).loaded
            loaded = sum(a.itemsize * int(np.prod(s)) for shapes in log for s in shapes)
            beside += abs(loaded - wanted)
        return [
            Target("wrong elements of C", 0, wrong, 0),
            Target("products larger than a tile", 0, large, 0),
            Target("bytes loaded beside the formula", 0, beside, 0),
        ]

    def figure(answer: Any) -> "Figure":
        kernel = given if answer is None else answer
        wrong = {}
        for m, n, k in SHOWN:
            a, b = _operands(m, n, k)
            wrong[k] = _run(kernel, a, b, SHOWN_TILE)[0] != a @ b
        return _wrong_elements(wrong, SHOWN_TILE, ", as given" * (answer is None))

    return Exercise(name="repair the kernel", measured=measure, drawn=figure)


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
        raise ConfigError(
            f"{name}{_signature(kernel)} raised {type(error).__name__} for {a.shape} @ {b.shape} "
            f"in tiles of {tile}: {error}"
        ) from error
    if c.shape != shape:
        raise ConfigError(
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


@styled
def _wrong_elements(wrong: Mapping[int, np.ndarray], tile: Tile, note: str) -> "Figure":
    """``wrong`` by k: whether each element of C is."""
    tm, tn, tk = tile
    figure = canvas(3.8, f"Wrong elements of C in tiles of {tm} x {tn} x {tk}{note}")
    panels = figure.subplots(1, len(wrong), squeeze=False)[0]
    for axes, (k, c) in zip(panels, wrong.items(), strict=True):
        steps, count = -(-k // tk), int(c.sum())
        axes.set_title(
            f"k = {k}, {steps} step{'s' * (steps > 1)}: {count or 'no'} wrong of {c.size}"
        )
        _elements(axes, c, tm, tn)
    for colour, words in ((PALE, "right"), (RED, "wrong")):
        panels[0].plot([], [], "s", color=colour, label=words)
    panels[0].plot([], [], color=BLUE, label="a tile, smaller at the edges")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower left", ncols=3)
    return figure


def _elements(axes: "Axes", wrong: np.ndarray, tm: int, tn: int) -> None:
    from matplotlib.patches import Rectangle

    m, n = wrong.shape
    for i, j in np.ndindex(m, n):
        colour, name = (RED, "wrong") if wrong[i, j] else (PALE, "right")
        axes.add_patch(
            Rectangle((j, i), 1, 1, facecolor=colour, edgecolor="white", gid=f"{name} {i} {j}")
        )
    for i, j in product(range(0, m, tm), range(0, n, tn)):
        rest = min(tn, n - j), min(tm, m - i)
        axes.add_patch(Rectangle((j, i), *rest, fill=False, edgecolor=BLUE, linewidth=1.6))
    axes.set(xlim=(-0.2, n + 0.2), ylim=(m + 0.2, -0.2), aspect="equal")
    axes.set(xlabel="columns of C", ylabel="rows of C")
    axes.set(xticks=range(0, n + 1, tn), yticks=range(0, m + 1, tm))
    axes.spines[:].set_visible(False)
