"""Tiles to choose: beside a mesh of workers, and within shared memory; worked out by formulas."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

from tiledask.errors import ConfigError, RuleError
from tiledask.lab import plots
from tiledask.lab.exercises.exercise import exercise, whole_numbers
from tiledask.lab.judging import Target
from tiledask.lab.plots.primitives import Figure
from tiledask.plan.products.placement import Shard, Tiling
from tiledask.tile import Config, Tile, config_of, order, predict, traffic
from tiledask.tile.choice.residency import refusal

__all__ = ["block_and_tile", "tile_of", "tile_within", "tiles_of"]

MB = 1_000_000
ITEM = 4
"""Bytes of a number: float32."""

# -- two levels ------------------------------------------------------------------------------------

Size = tuple[int, int, int]
"""(m, n, k) of Y = X A, of which X is m x k."""
BlockAndTile = tuple[tuple[int, int], Tile]


def _mesh_and_tile(answer: Any) -> BlockAndTile | None:
    pair = tuple(answer) if isinstance(answer, tuple | list) else ()
    if len(pair) != 2:
        return None
    mesh, tile = whole_numbers(pair[0], 2, 1), whole_numbers(pair[1], 3, 1)
    return None if mesh is None or tile is None else (mesh, tile)


def _two_levels(answer: BlockAndTile | None, size: Size, workers: int, **_: Any) -> Figure:
    (m, n, k), (mesh, tile) = size, answer or ((1, workers), (32, 32, 32))
    x, a = (Tiling(shape, mesh, (Shard(0), Shard(1))) for shape in ((m, k), (k, n)))
    title = f"{mesh[0]} x {mesh[1]} workers" + " (not attempted)" * (answer is None)
    return plots.two_levels(x, a, tile=tile, names=("X", "A", "Y"), title=title)


@exercise("block-and-tile", read=_mesh_and_tile, draw=_two_levels)
def block_and_tile(
    answer: BlockAndTile,
    size: Size = (2000, 1000, 500),
    workers: int = 8,
    cache: int = 16_000,
    between: float = 12e6,
    loaded: float = 18e6,
) -> list[Target]:
    """Choose the mesh and the tile of Y = X A by SUMMA from blocks, in float32."""
    (m, n, k), ((p, q), tile) = size, answer
    if p * q != workers:
        raise ConfigError(f"{p} x {q} are {p * q} workers; there are {workers}")

    def moves(p: int, q: int) -> int:
        """Bytes that all workers receive: X moves q - 1 times, A moves p - 1 times."""
        return ITEM * (m * k * (q - 1) + k * n * (p - 1))

    def loads(p: int, q: int, tile: Tile) -> int:
        return traffic(-(-m // p), -(-n // q), k, tile, ITEM).loaded

    meshes = [(p, workers // p) for p in range(1, workers + 1) if workers % p == 0]
    allowed = [mesh for mesh in meshes if moves(*mesh) <= between]
    least = min(loads(*mesh, t) for mesh in allowed for t in _widest(cache // ITEM))
    of_y, others = ITEM * tile[0] * tile[1], ITEM * tile[2] * (tile[0] + tile[1])
    rows, columns = -(-m // p), -(-n // q)
    tiles = f"{-(-rows // tile[0])} x {-(-columns // tile[1])} tiles"
    inside = f"the tile of Y takes {of_y:,}, those of X and A {others:,}"
    times = f"X moves {q - 1} times and A {p - 1} times"
    cut = f"{rows} x {columns} of Y are {tiles}"
    mine = loads(p, q, tile)
    return [
        Target("MB between workers", between / MB, moves(p, q) / MB, where=times),
        Target("bytes of the cache", cache, of_y + others, where=inside),
        Target("MB loaded by a worker", loaded / MB, mine / MB, least / MB, where=cut),
    ]


def _widest(numbers: int) -> Iterator[Tile]:
    """Tiles of one step, the widest for each number of rows: nothing loads less in the cache."""
    for rows in range(1, numbers):
        if (columns := (numbers - rows) // (rows + 1)) < 1:
            return
        yield rows, columns, 1


# -- a tile within shared memory -------------------------------------------------------------------

SIDES, STEPS, STAGES = (64, 128, 256), (16, 32, 64), (2, 3, 4, 5, 6)
"""Rows or columns of C, elements of k, and stages that an answer may have."""
L2 = "L2 -> shared memory"


@lru_cache(maxsize=1)
def _space() -> dict[tuple[Tile, int], Config]:
    """Every answer there is: tiles of the kernel, with any step and number of stages."""
    return {
        (tile, stages): replace(config_of("mma_multistage", "bfloat16", tile), stages=stages)
        for tile, stages in product(product(SIDES, SIDES, STEPS), STAGES)
    }


def tile_of(answer: Any) -> Config | None:
    """The configuration of the bf16 kernel mma_multistage for ((tm, tn, tk), stages).

    >>> print(tile_of(((128, 64, 32), 3)))
    mma_multistage 128x64x32, 3 stages, group 8
    """
    pair = tuple(answer) if isinstance(answer, tuple | list) else ()
    whole = whole_numbers(pair[0], 3) if len(pair) == 2 else None
    one = whole_numbers(pair[1:], 1)
    return _space().get((whole, one[0])) if whole and one else None


def tiles_of(device: str, limit: int, stages: int) -> list[Config]:
    """Every answer that ``device`` can run, in ``limit`` bytes a block and ``stages`` or more."""
    return [
        config
        for config in _space().values()
        if config.stages >= stages and config.shared_bytes <= limit and not refusal(config, device)
    ]


def _levels(
    config: Config | None, size: Size, device: str, limit: int, stages: int, **_: Any
) -> Figure:
    shown = config or _space()[(64, 64, 16), stages]
    note = " (not attempted: the smallest tile)" * (config is None)
    levels = predict(*size, shown, device).levels
    inside = replace(levels, levels=levels.levels[1:])  # DRAM is not what is chosen for
    kB = f"{shown.shared_bytes / 1e3:.4g} kB of shared memory, {limit / 1e3:g} kB allowed"
    return plots.tile_levels(inside, title=f"{shown} on {device}{note}\n{kB}")


@lru_cache(maxsize=8)
def _best(
    size: Size, device: str, limit: int, stages: int, most: float, steps: int
) -> tuple[int, float]:
    """(bytes into shared memory, at least; seconds) of the tiles that keep to all limits."""
    fitting = [
        p
        for p in order(*size, tiles_of(device, limit, stages), device)
        if p.levels[L2].loaded <= most and -(-size[2] // p.config.block[2]) <= steps
    ]
    return min(p.levels[L2].loaded for p in fitting), fitting[0].seconds


@exercise("tile-within", read=tile_of, draw=_levels)
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
        raise RuleError(
            f"{config.stages} stages keep copies {config.stages - 1} steps ahead; the task has "
            f"{stages} stages or more"
        )
    (m, n, k), (tm, tn, tk) = size, config.block
    most = 2 * m * n * k / intensity
    least, seconds = _best(size, device, limit, stages, most, steps)
    found, best = predict(*size, config, device), round(1e6 * seconds, 2)
    loaded, shared = found.levels[L2].loaded, config.shared_bytes / 1e3
    stage = f"a stage of ({tm} + {tn}) x {tk} numbers takes {shared / config.stages:.4g}"
    reuse = f"a byte brings {2 * m * n * k / loaded:.3g} FLOP, {intensity:.3g} are asked"
    return [
        Target("kB of shared memory per block", limit / 1e3, shared, where=stage),
        Target("GB into shared memory", most / 1e9, loaded / 1e9, least / 1e9, where=reuse),
        Target("steps along k", steps, -(-k // tk), where=f"{k} / {tk} steps"),
        Target(
            "microseconds at least",
            best,
            round(1e6 * found.seconds, 2),
            best,
            where=f"bound by {found.binding}",
        ),
    ]
