"""Part 2: the two-level product. Blocks over workers, tiles within a block, each on its own.

C = A @ B over a 2 x 2 mesh            one block of C, tile by tile
+-----+-----+                          +--+--+--+--+
| 0   | 1   |   rank 1 fetches A[00]   |  |  |  |  |   what the tile reads depends on
+-----+-----+   and B[11]              +--+--+--+--+   the tile; what workers send
| 2   | 3   |                          |  |##|  |  |   depends on the blocks
+-----+-----+                          +--+--+--+--+
"""

from collections.abc import Iterable
from typing import Any

import tiledask as td
from tiledask.lab import plots
from tiledask.lab.product_claims import GRID, RandomProduct, product_rows
from tiledask.lab.report import Section
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.products.placement import split

__all__ = ["two_levels"]

N = 4096
MESH = (2, 2)
TILES = (64, 128, 256)
MESHES = ((1, 4), (4, 1), (2, 2))


def two_levels(section: Section, cluster: Any) -> None:
    """One product counted at both levels; then each level changed under the other."""
    problem = RandomProduct.random(N, N, N)
    tile, kernel = (32, "smem_tiled") if cluster.backend == "cupy" else (512, "tiled")
    mesh = td.Mesh(cluster, MESH)
    A, B = td.distribute(problem.a, mesh, GRID), td.distribute(problem.b, mesh, GRID)
    # by name: which is fastest hangs on measured rates, and the formula beside it is SUMMA's
    runs = [td.matmul(A, B, algorithm="summa", kernel=kernel, tile=tile) for _ in range(2)]
    C = min(runs, key=lambda run: run.seconds)
    section.text(
        f"A float32 product of {N} x {N} x {N} on a {MESH[0]} x {MESH[1]} mesh of workers "
        f"(`{C.made_by}`), each block multiplied by the kernel `{kernel}` in tiles of {tile}. "
        f"Predicted: the formula of the algorithm. Simulated: the list of pieces that the plan "
        f"sends. Measured: what the workers logged."
    )
    section.table(Comparison("The two-level tiled product", product_rows(problem, C, kernel, tile)))
    p, q = MESH
    ranks = [[i * q + j for j in range(q)] for i in range(p)]
    rows = [0, *(stop for _, stop in split(0, N, p))]
    columns = [0, *(stop for _, stop in split(0, N, q))]
    section.figure(
        plots.owners({name: plots.Blocks(ranks, rows, columns) for name in ("A", "B", "C")}),
        "owners",
        "Which rank owns which block.",
    )
    section.figure(
        plots.traffic_matrix(*C.traffic), "traffic", "Bytes from rank to rank, every cell equal."
    )
    table, moved, intensity = independence(problem, cluster, kernel)
    section.table(table)
    section.figure(
        plots.intensity(
            [str(t) for t in _tiles(kernel)],
            ["x".join(map(str, m)) for m in MESHES],
            intensity,
            moved,
        ),
        "independence",
        "Each level changed while the other stays: what it does not decide does not move.",
    )


def _tiles(kernel: str) -> tuple[int, ...]:
    return (16, 32) if kernel == "smem_tiled" else TILES


def independence(
    problem: RandomProduct, cluster: Any, kernel: str
) -> tuple[Comparison, list[list[int]], list[list[float]]]:
    """(the table, bytes between workers and FLOP per byte of a tile as [tile][blocking])."""
    n = 1024
    a, b = problem.a[:n, :n], problem.b[:n, :n]
    moved, intensity, rows = [], [], []
    operands = {
        shape: tuple(td.distribute(x, td.Mesh(cluster, shape), GRID) for x in (a, b))
        for shape in MESHES
    }
    for tile in _tiles(kernel):
        products = [
            td.matmul(*operands[s], algorithm="summa", kernel=kernel, tile=tile) for s in MESHES
        ]
        moved.append([C.traffic.measured.total for C in products])
        intensity.append([C.tiles.intensity for C in products])
    for j, (p, q) in enumerate(MESHES):
        rows.append(
            Claim(
                f"blocking {p}x{q}: bytes between workers, tiles {_words(_tiles(kernel))}",
                n * n * 4 * (p + q - 2),
                None,
                _one(m[j] for m in moved),
                "bytes",
                "equal",
            )
        )
    for i, tile in enumerate(_tiles(kernel)):
        rows.append(
            Claim(
                f"tile {tile}: FLOP per byte loaded, blockings "
                f"{_words('x'.join(map(str, s)) for s in MESHES)}",
                tile / 4,
                None,
                _one(intensity[i]),
                rule="equal",
            )
        )
    return Comparison("The levels are independent (1024 x 1024 x 1024)", rows), moved, intensity


def _one(values: Iterable) -> float | tuple:
    """The value that all of ``values`` have, or all of them if they differ."""
    values = tuple(values)
    return values[0] if len(set(values)) == 1 else values


def _words(values: Iterable) -> str:
    return ", ".join(map(str, values))
