"""One product in tiles: a loop to repair, and sizes of tiles to choose."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from tiledask.errors import RuleError
from tiledask.lab import plots
from tiledask.lab.exercises.exercise import (
    calling,
    exercise,
    instance,
    none_wrong,
    whole_numbers,
)
from tiledask.lab.judging import Target
from tiledask.lab.plots.primitives import Figure
from tiledask.tile import Config, Tile, config_of, order, predict, traffic
from tiledask.tile.choice.residency import refusal

__all__ = ["repaired_kernel", "tile_within"]

MB = 1_000_000
Size = tuple[int, int, int]
"""(m, n, k) of a product."""

# -- a loop to repair ------------------------------------------------------------------------------

SHAPES = ((4, 6, 8), (7, 5, 3), (1, 1, 1), (1, 9, 4), (10, 1, 7), (13, 11, 9))
"""(m, n, k): tiles divide the first, and leave rests of the others."""
TILES = ((2, 3, 4), (4, 4, 4), (5, 2, 3), (16, 16, 16))


@exercise("repaired-kernel", instance(Callable))
def repaired_kernel(kernel: Callable[..., Any]) -> list[Target]:
    """Write a function (a, b, (tm, tn, tk)) -> a @ b that multiplies tile by tile, or repair one.

    It is run on whole numbers, whose sums are exact, in shapes that the tile divides and shapes
    that it does not. Every product of tiles is seen: none may be larger than the tile, and as many
    bytes are loaded as the formula of `td.tile.traffic` says."""
    elements, off, sums, large, loads = 0, 0, [], [], []
    for (m, n, k), tile in product(SHAPES, TILES):
        rng = np.random.default_rng([m, n, k])
        a, b = (rng.integers(1, 10, shape).astype(np.float32) for shape in ((m, k), (k, n)))
        c, log = _run(kernel, a, b, tile)
        at, wrong = f"for {a.shape} @ {b.shape} in tiles of {tile}", np.argwhere(c != a @ b)
        if len(wrong):
            elements += len(wrong)
            (top, left), (low, right) = wrong.min(0), wrong.max(0)
            place = f"rows {top} to {low}, columns {left} to {right}"
            # what is wrong in a part of C says more than what is wrong everywhere
            sums.append((len(wrong) == c.size, f"C is wrong in {place}, {at}"))
        limits = ((tile[0], tile[2]), (tile[2], tile[1]))
        large += [
            f"{x} @ {y} is larger than a tile {at}"
            for x, y in log
            if len(x) != 2 or len(y) != 2 or (np.array([x, y]) > limits).any()
        ]
        wanted = traffic(m, n, k, tile, a.itemsize).loaded
        loaded = sum(a.itemsize * int(np.prod(shape)) for both in log for shape in both)
        off += abs(loaded - wanted)
        if loaded != wanted:
            side = "many" if loaded > wanted else "few; what is counted is @, np.matmul and np.dot"
            loads.append(f"{loaded:,} bytes are loaded, of {wanted:,} by the formula: too {side}")
    located = [said for _, said in sorted(sums)[:1]]
    return [
        none_wrong("wrong elements of C", located, elements),
        none_wrong("products larger than a tile", large[:1], len(large)),
        none_wrong("bytes loaded beside the formula", loads[:1], off),
    ]


def _run(
    kernel: Callable[..., Any], a: np.ndarray, b: np.ndarray, tile: Tile
) -> tuple[np.ndarray, list[Any]]:
    """(what a kernel returns, the shapes of both operands of each product that it made)."""
    log: list[Any] = []

    class CountedOperand(np.ndarray):
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
            if ufunc is np.matmul:
                log.append(tuple(np.shape(x) for x in inputs))
            if "out" in options:
                options["out"] = tuple(map(plain, options["out"]))
            return getattr(ufunc, method)(*map(plain, inputs), **options)

        def __array_function__(self, called: Any, types: Any, args: Any, options: Any) -> Any:
            if called is np.dot:  # of matrices the same
                return np.matmul(*args, **options)
            return super().__array_function__(called, types, args, options)

        def dot(self, other: Any, out: Any = None) -> Any:
            return np.matmul(self, other, out=out)

    def plain(x: Any) -> Any:
        return x.view(np.ndarray) if isinstance(x, CountedOperand) else x

    with calling(kernel, f"for {a.shape} @ {b.shape} in tiles of {tile}"):
        c = np.asarray(kernel(*(x.copy().view(CountedOperand) for x in (a, b)), tile))
    if c.shape != (len(a), b.shape[1]):
        raise RuleError(f"{a.shape} @ {b.shape} is {(len(a), b.shape[1])}; got {c.shape} back")
    return c, log


# -- a tile within shared memory -------------------------------------------------------------------

SIDES, STEPS, STAGES = (64, 128, 256), (16, 32, 64), (2, 3, 4, 5, 6)
"""Rows or columns of C, elements of k, and stages that an answer may have."""
L2 = "L2 -> shared memory"


@cache
def space() -> dict[tuple[Tile, int], Config]:
    """Every answer there is: tiles of the bf16 kernel, with any step and number of stages."""
    return {
        (tile, stages): replace(config_of("mma_multistage", "bfloat16", tile), stages=stages)
        for tile, stages in product(product(SIDES, SIDES, STEPS), STAGES)
    }


def _tile_of(answer: Any) -> Config | None:
    tile, stages = answer
    (count,) = whole_numbers((stages,), 1)
    return space().get((whole_numbers(tile, 3), count))


def _levels(
    config: Config | None, size: Size, device: str, limit: int, stages: int, **_: Any
) -> Figure:
    shown = config or space()[(64, 64, 16), stages]
    levels = predict(*size, shown, device).levels
    inside = replace(levels, levels=levels.levels[1:])  # DRAM is not what is chosen for
    bars = {f"{level.name}\n{level.intensity:.4g} FLOP/byte": level.name for level in inside.levels}
    return plots.memory_bars(
        {words: {"time": 1e6 * inside.times[name]} for words, name in bars.items()},
        unit="µs",
        place="level",
        title=f"{shown} on {device}, {limit / 1e3:g} kB allowed",
    )


@cache
def _best(
    size: Size, device: str, limit: int, stages: int, most: float, steps: int
) -> tuple[int, float]:
    """(bytes into shared memory, at least; seconds) of the tiles that keep to all limits."""
    usable = [
        each
        for each in space().values()
        if each.stages >= stages and each.shared_bytes <= limit and not refusal(each, device)
    ]
    fitting = [
        p
        for p in order(*size, usable, device)
        if p.levels[L2].loaded <= most and -(-size[2] // p.config.block[2]) <= steps
    ]
    return min(p.levels[L2].loaded for p in fitting), fitting[0].seconds


@exercise("tile-within", _tile_of, _levels)
def tile_within(
    config: Config,
    size: Size = (4096, 4096, 4096),
    device: str = "H200",
    limit: int = 100_000,
    stages: int = 4,
    intensity: float = 800 / 10.14,
    steps: int = 128,
) -> list[Target]:
    """Choose tile and stages of the bf16 kernel mma_multistage, within a limit of shared memory,
    with enough FLOP per byte and few enough steps along k; the fastest by its bound."""
    if config.stages < stages:
        raise RuleError(f"the task has {stages} stages or more; got {config.stages}")
    (m, n, k), (tm, tn, tk), flops = size, config.block, 2 * int(np.prod(size))
    least, seconds = _best(size, device, limit, stages, flops / intensity, steps)
    found = predict(m, n, k, config, device)
    loaded, shared = found.levels[L2].loaded, config.shared_bytes / 1e3
    took, best = (round(1e6 * each, 2) for each in (found.seconds, seconds))
    stage = f"a stage of ({tm} + {tn}) x {tk} numbers takes {shared / config.stages:.4g}"
    reuse = f"a byte brings {flops / loaded:.3g} FLOP, {intensity:.3g} are asked"
    most, bound = flops / intensity / 1e9, f"bound by {found.binding}"
    return [
        Target("kB of shared memory per block", limit / 1e3, shared, why=stage),
        Target("GB into shared memory", most, loaded / 1e9, least / 1e9, why=reuse),
        Target("steps along k", steps, -(-k // tk), why=f"{k} / {tk} steps"),
        Target("microseconds at least", best, took, best, why=bound),
    ]
