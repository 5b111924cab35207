"""Choose tiles: one within shared memory; one for each worker beside the mesh of workers."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

from tiledask.errors import ConfigError, RuleError
from tiledask.lab import plots
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots import primitives as draw
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.plots.style import RED
from tiledask.plan.products.placement import Shard, Tiling
from tiledask.plan.units import format_bytes
from tiledask.plan.whole import is_whole
from tiledask.tile import Config, Tile, TileTraffic, config_of, order, predict, traffic
from tiledask.tile.choice.residency import refusal

__all__ = ["block_and_tile", "tile_of", "tile_within", "tiles_of"]

MB = 1_000_000
ITEM = 4
"""Bytes of a number: float32."""
Size = tuple[int, int, int]
"""(m, n, k) of Y = X A, of which X is m x k."""
Answer = tuple[tuple[int, int], Tile]


def block_and_tile(
    size: Size, workers: int, *, cache: int, between: float, loaded: float
) -> Exercise:
    """Choose the mesh and the tile of Y = X A by SUMMA from blocks, in float32.

    ``cache``: bytes that the tiles of X, A and Y may take together. ``between``: bytes that move
    between workers, at most. ``loaded``: bytes of X and A that the tiles of a worker load, at most.
    The best of them are found by trying every mesh and every tile that a cache holds.
    """
    m, n, k = size
    meshes = [(p, workers // p) for p in range(1, workers + 1) if workers % p == 0]
    fewest, example = min(_between(size, mesh) for mesh in meshes), meshes[(len(meshes) - 1) // 2]
    allowed = [mesh for mesh in meshes if _between(size, mesh) <= between]
    if not allowed:
        raise ConfigError(
            f"no mesh of {workers} workers moves {between / MB:g} MB or fewer; the best moves "
            f"{fewest / MB:g}"
        )
    tiles = list(_largest(cache // ITEM))
    least = min(_inside(size, mesh, tile).loaded for mesh in allowed for tile in tiles)

    def measure(answer: Answer) -> list[Target]:
        mesh, tile = answer
        inside, (p, q) = _inside(size, mesh, tile), mesh
        rows, columns = -(-inside.m // tile[0]), -(-inside.n // tile[1])
        cut = f"{inside.m} x {inside.n} of Y are {rows} x {columns} tiles"
        of_y, others = ITEM * tile[0] * tile[1], ITEM * tile[2] * (tile[0] + tile[1])
        held = f"the tile of Y takes {of_y:,}, those of X and A {others:,}"
        return [
            Target(
                "MB between workers",
                between / MB,
                _between(size, mesh) / MB,
                None,
                where=f"X moves {q - 1} times and A {p - 1} times",
            ),
            Target("bytes of the cache", cache, of_y + others, None, where=held),
            Target("MB loaded by a worker", loaded / MB, inside.loaded / MB, least / MB, where=cut),
        ]

    def figure(answer: Answer | None) -> Figure:
        mesh, tile = answer or (example, (32, 32, 32))
        cut = Shard(0), Shard(1)
        x, a = (Tiling(shape, mesh, cut) for shape in ((m, k), (k, n)))
        p, q = mesh
        title = f"{p} x {q} workers" + " (not attempted)" * (answer is None)
        return plots.two_levels(x, a, tile=tile, names=("X", "A", "Y"), title=title)

    return Exercise(
        name="block and tile",
        form=(
            f"((p, q), (rows, columns, steps)), for example ({example}, (32, 32, 32)), with p x "
            f"q = {workers}"
        ),
        hints=(
            "Of X and A, which has more bytes, and along which axis of the mesh does it move?",
            "The steps along k do not change how often a number is loaded. What do they take?",
            "X is loaded once for each tile across, A once for each tile down. Tiles that leave a "
            "narrow rest at the edge of the block waste a pass.",
        ),
        measured=measure,
        drawn=figure,
        read=lambda answer: _chosen(answer, workers),
    )


def _between(size: Size, mesh: tuple[int, int]) -> int:
    """Bytes that all workers receive: X moves q - 1 times, A moves p - 1 times."""
    (m, n, k), (p, q) = size, mesh
    return ITEM * (m * k * (q - 1) + k * n * (p - 1))


def _inside(size: Size, mesh: tuple[int, int], tile: Tile) -> TileTraffic:
    """What the tiles of the largest block load."""
    (m, n, k), (p, q) = size, mesh
    return traffic(-(-m // p), -(-n // q), k, tile, ITEM)


def _largest(numbers: int) -> Iterator[Tile]:
    """Tiles of one step, the widest for each number of rows: nothing loads less in the cache."""
    for rows in range(1, numbers):
        columns = (numbers - rows) // (rows + 1)
        if columns < 1:
            return
        yield rows, columns, 1


def _chosen(answer: Any, workers: int) -> Answer | None:
    pair = tuple(answer) if isinstance(answer, tuple | list) else ()
    parts = [tuple(part) for part in pair if isinstance(part, tuple | list)]
    whole = all(is_whole(n) and n >= 1 for part in parts for n in part)
    if [len(part) for part in parts] != [2, 3] or len(pair) != 2 or not whole:
        return None
    (p, q), (rows, columns, steps) = parts
    if p * q != workers:
        raise ConfigError(f"{p} x {q} are {p * q} workers; there are {workers}")
    return (p, q), (rows, columns, steps)


KERNEL = "mma_multistage"
SIDES, STEPS, STAGES = (64, 128, 256), (16, 32, 64), (2, 3, 4, 5, 6)
"""Rows or columns of C, elements of k, and stages that an answer may have."""
L2 = "L2 -> shared memory"


def tile_of(answer: Any) -> Config:
    """The configuration of the bf16 kernel mma_multistage for ((tm, tn, tk), stages).

    >>> print(tile_of(((128, 64, 32), 3)))
    mma_multistage 128x64x32, 3 stages, group 8
    """
    legal = isinstance(answer, tuple | list) and len(answer) == 2
    tile, stages = answer if legal else (None, None)
    shaped = isinstance(tile, tuple | list) and all(map(is_whole, (*tile, stages)))
    if not shaped or (tuple(tile), stages) not in _space():
        raise ConfigError(
            f"an answer is ((tm, tn, tk), stages), for instance ((64, 128, 32), 3): tm and tn one "
            f"of {_or(SIDES)}, tk one of {_or(STEPS)}, stages one of {_or(STAGES)}; got {answer!r}"
        )
    return _space()[tuple(tile), stages]


@lru_cache(maxsize=1)
def _space() -> dict[tuple[Tile, int], Config]:
    """Every answer there is: tiles of the kernel, with any step and number of stages."""
    return {
        (tile, stages): replace(config_of(KERNEL, "bfloat16", tile), stages=stages)
        for tile, stages in product(product(SIDES, SIDES, STEPS), STAGES)
    }


def tiles_of(device: str, limit: int | None = None, stages: int = 2) -> list[Config]:
    """Every answer that ``device`` can run, in ``limit`` bytes a block and ``stages`` or more."""
    return [
        config
        for config in _space().values()
        if config.stages >= stages
        and (limit is None or config.shared_bytes <= limit)
        and not refusal(config, device)
    ]


def tile_within(
    size: Size, device: str = "H200", *, limit: int, stages: int, intensity: float, steps: int
) -> Exercise:
    """Choose tile and stages of the bf16 kernel mma_multistage, for a product on ``device``.

    ``limit``: bytes of shared memory of a block. ``stages``: at least. ``intensity``: FLOP per
    byte brought into shared memory, at least, and so bytes at most. ``steps``: along k, at most.
    The bound of `td.tile.predict` must be the best of all tiles that keep to all this.
    """
    m, n, k = size
    most = 2 * m * n * k / intensity
    fitting = [
        p
        for p in order(*size, tiles_of(device, limit, stages), device)
        if p.levels[L2].loaded <= most and -(-k // p.config.block[2]) <= steps
    ]
    if not fitting:
        raise ConfigError(
            f"no tile keeps to {limit:,} bytes, {stages} stages, {intensity:.3g} FLOP per byte and "
            f"{steps} steps on {device}; raise the limit of shared memory"
        )
    least = min(p.levels[L2].loaded for p in fitting)

    def measure(config: Config) -> list[Target]:
        if config.stages < stages:
            raise RuleError(
                f"{config.stages} stages keep copies {config.stages - 1} steps ahead; the task "
                f"has {stages} stages or more"
            )
        found, best = predict(*size, config, device), round(1e6 * fitting[0].seconds, 2)
        (tm, tn, tk), each = config.block, config.shared_bytes / config.stages / 1e3
        stage = f"a stage of ({tm} + {tn}) x {tk} numbers takes {each:.4g}, {config.stages} of them"
        reuse = f"a byte brings {2 * m * n * k / found.levels[L2].loaded:.3g} FLOP in {tm} x {tn}"
        return [
            Target(
                "kB of shared memory per block",
                limit / 1e3,
                config.shared_bytes / 1e3,
                None,
                where=stage,
            ),
            Target(
                "GB into shared memory",
                most / 1e9,
                found.levels[L2].loaded / 1e9,
                least / 1e9,
                where=f"{reuse}, {intensity:.3g} are asked",
            ),
            Target("steps along k", steps, -(-k // tk), None, where=f"{k} / {tk} steps"),
            Target(
                "microseconds at least",
                best,
                round(1e6 * found.seconds, 2),
                best,
                where=f"bound by {found.binding}",
            ),
        ]

    def figure(answer: Any) -> draw.Figure:
        config = answer or tile_of(((64, 64, 16), stages))
        note = " (not attempted: the smallest tile)" if answer is None else ""
        title = (
            f"{KERNEL} {_short(config)} on {device}{note}\n{m} x {n} x {k}; "
            f"{format_bytes(config.shared_bytes)} of shared memory, {format_bytes(limit)} allowed"
        )
        levels = predict(*size, config, device).levels
        inside = replace(levels, levels=levels.levels[1:])  # DRAM is not what is chosen for
        drawn = plots.tile_levels(inside, title=title)
        if answer is not None and (config.shared_bytes > limit or levels[L2].loaded > most):
            (panel,) = (axes for axes in drawn.axes if axes.get_title().startswith(L2))
            (drawn_tile,) = (patch for patch in panel.patches if patch.get_gid() == "tile")
            draw.mark_box(panel, drawn_tile.get_bbox().bounds, L2)
            panel.title.set_color(RED)
        return drawn

    return Exercise(
        name="a tile within shared memory",
        form=(
            f"((tm, tn, tk), stages), for example ((64, 64, 16), {stages}), with sides of "
            f"{_or(SIDES)}, steps of {_or(STEPS)} and stages of {_or(STAGES)}"
        ),
        hints=(
            "A byte that is brought in is used once for each row or column of the tile on the "
            "other side. Which sides of C's tile give enough FLOP per byte?",
            "2 tm tn / (2 (tm + tn)) FLOP per byte, at two bytes a number. The largest tile has "
            "more than enough and sums that leave no registers.",
            "A stage takes (tm + tn) x tk x 2 bytes: divide the limit by the stages, and by tm + "
            "tn. The steps along k say how small tk may be.",
        ),
        measured=measure,
        drawn=figure,
        read=tile_of,
    )


def _short(config: Config) -> str:
    return f"{'x'.join(map(str, config.block))}, {config.stages} stages"


def _or(values: Sequence[int]) -> str:
    return f"{', '.join(map(str, values[:-1]))} or {values[-1]}"
