"""Choose both levels of a product: the mesh that cuts it into blocks, the tile that cuts a block.

answer = ((p, q), (rows, columns, steps))  ->  bytes between workers, of a cache, loaded | targets
"""

from collections.abc import Iterator
from typing import Any

from tiledask.errors import ConfigError
from tiledask.lab import plots
from tiledask.lab.judging import Exercise, Target
from tiledask.lab.plots.primitives import Figure
from tiledask.plan.products.placement import Shard, Tiling
from tiledask.plan.whole import is_whole
from tiledask.tile import Tile, TileTraffic, traffic

__all__ = ["block_and_tile"]

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
        question=(
            f"X is {m} x {k} and A {k} x {n} in float32, in blocks on {workers} workers. Choose "
            f"the mesh and the tile of Y = X A by SUMMA. At most {between / MB:g} MB may move "
            f"between workers. A tile of Y, one of X and one of A lie in {cache:,} bytes. And the "
            f"tiles of a worker load at most {loaded / MB:g} MB."
        ),
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
