"""6, 8 and 9: tiles within a worker or blocks over workers: which is at fault, and what each does.

high   blocks over workers    memory, traffic, balance, how many devices
low    tiles within a worker  reuse, coalesced loads, tensor cores, occupancy
"""

from math import ceil
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.course import runs
from tiledask.lab.course.products import ITEM, Grid, named
from tiledask.lab.course.question import Names, question
from tiledask.lab.course.runs import Blocking
from tiledask.lab.course.words import count
from tiledask.plan.collectives.cost import even
from tiledask.plan.inputs.hardware import load_device
from tiledask.tile.choice.bound import Levels
from tiledask.tile.choice.config import refusal


@question(6)
def level_at_fault(size: int, workers: int, device: str, largest: float) -> Names:
    """What tiles load and how fast that lets a device be; how long blocks make workers wait."""
    first, ridge, flop = round(largest * size), td.tile.ridge(device), 2 * size**3
    shape = size, size, size
    if min(first, (size - first) // (workers - 1)) < 1:
        raise ConfigError(
            f"{largest:g} of {size} rows on the first leaves some worker without a row; give less"
        )
    plan, extent = Blocking((1, workers)).plan(size, size, size), ceil(ITEM * ridge)
    loads = {tile: runs.loaded(plan, tile) for tile in (1, 2, 4, 8, 16, 32)}
    reuse = {tile: flop / nbytes for tile, nbytes in loads.items()}
    share = {tile: min(1.0, each / ridge) for tile, each in reuse.items()}
    rows = max(first, *even(size - first, workers - 1))
    used, most = size / workers / rows, flop / runs.loaded(plan, size)
    # if the whole block as one tile loads too much, every tile does
    tiles = range(min(extent, size), size + 1) if most >= ridge else ()
    enough = next((tile for tile in tiles if flop / runs.loaded(plan, tile) >= ridge), None)
    sent = ITEM * size * size * (workers - 1)
    rows_each, loaded = size / workers, [*loads.values()]
    lines = {tile: (loads[tile], reuse[tile], share[tile]) for tile in loads}
    intensity, shares, of_32 = [*reuse.values()], [*share.values()], share[32]
    products = {f"T = {tile}": (Blocking((1, workers), tile=tile), sent) for tile in (8, 16, 32)}
    return locals()


@question(8)
def carried_tile(kernel: str, tuned_on: str, runs_on: str, m: int, n: int, k: int) -> Names:
    """Shared memory, occupancy, waves and bound of both tiles on the new device."""

    def time(e: Levels) -> tuple[float, ...]:  # where one level bounds two alike, the others decide
        return e.seconds, sum(e.times.values()), e.levels[1].moved, -e.config.stages

    def best_on(device: str) -> Levels:
        if found := td.tile.candidates(kernel, device):
            return min((td.tile.predict(m, n, k, each, device) for each in found), key=time)
        why = refusal(td.tile.config_of(kernel), device)
        raise ConfigError(f"{kernel} does not run on {device}: {why}; take smem_tiled")

    old, new, shape = best_on(tuned_on), best_on(runs_on), (512, 512, 512)
    stays, why_not, reached = old.config == new.config, refusal(old.config, runs_on), 0.0
    shown = {f"the best on the {tuned_on}": old, f"the best on the {runs_on}": new}
    if not why_not:
        carried = td.tile.predict(m, n, k, old.config, runs_on)
        reached = carried.flops_per_second
        shown |= {} if stays else {"the old one there": carried}
    best, loss = new.flops_per_second, 1 - reached / new.flops_per_second
    tiles = [" x ".join(map(str, each.config.block)) for each in (old, new)]
    answer = f"Nothing: of this product {tiles[1]} is the best tile on both"
    if not stays:
        answer = f"{tiles[0]} gives away {100 * loss:.1f} % on the {runs_on}; best is {tiles[1]}"
    lines = {name: (e.occupancy, e.flops_per_second / 1e12, e.binding) for name, e in shown.items()}
    tera, best_tera, before, after = reached / 1e12, best / 1e12, old.config.block, new.config.block
    carried_speed, new_speed = reached / old.flops_per_second, best / old.flops_per_second
    blocks = [old.occupancy.blocks, new.occupancy.blocks]
    products = {f"a tile of {tile}": (Blocking((1, 1), tile=tile), 0) for tile in (16, 64, 256)}
    return locals()


# -- 9: eight goals, each a number that moves with one level ---------------------------------------


def _numbers(
    size: int, grid: Grid, rows: Grid, tile: int, device: str, down: bool = False,
    kernel: str = "smem_tiled",
) -> dict[str, tuple[str, float]]:  # fmt: skip
    """Goal -> what tells how far a size x size x size product reaches it, and that number.

    ``rows``: of C, of each worker, where they are dealt out by rows; ``down``: whether neighbouring
    threads read down a column."""
    square = (c for c in td.tile.configs[kernel] if c.block == (tile,) * 3)
    config = next(square, td.tile.config_of(kernel))
    on_one, peak = td.tile.occupancy(config, device), load_device(device).peak(config.peak)
    (p, q), C = grid, size**2
    block = even(size, p)[0] * even(size, q)[0]
    return {
        "fit each part into a device's memory": (
            "bytes of A, B and C on a worker", 3 * ITEM * block),
        "move little between devices": ("bytes between workers", ITEM * C * (p + q - 2)),
        "give every device as much to do": (
            "FLOP of the fullest worker over the mean", max(rows) * len(rows) / size),
        "choose how many devices": ("FLOP a worker", 2 * C * size // (p * q)),
        "use again what was loaded": ("FLOP a byte that tiles load", tile / ITEM),
        "load coalesced": (  # by the 32 threads of a warp
            "sectors of 32 bytes that a warp's load touches", 32 if down else 32 * ITEM // 32),
        "use tensor cores": ("peak of the units that compute, TFLOP/s", peak / 1e12),
        "hide latency by many warps": (
            "warps on a multiprocessor", on_one.blocks * on_one.warps),
    }  # fmt: skip


@question(9)
def goals(size: int, workers: int, tile: int, device: str) -> Names:
    """Every goal's number, as it is and after each change of one level."""
    if size % (2 * workers * 32) or workers % 2:
        rule = "blocks must be whole tiles: size a multiple of 64 x workers, and workers even"
        raise ConfigError(f"{rule}; got size {size} and {workers} workers")
    if why_not := refusal(td.tile.config_of("mma_multistage"), device):
        raise ConfigError(f"the tensor-core kernel does not run on a {device}: {why_not}")
    square = next(g for g in td.formulas.grids(workers, 2) if g[0] ** 2 >= workers)
    few, part, flat, other = workers // 2, size // (2 * workers), (1, workers), 48 - tile
    uneven = (size - (workers - 1) * part, *[part] * (workers - 1))
    usual: dict[str, Any] = {"grid": square, "rows": even(size, workers), "tile": tile}
    half = {"grid": min(td.formulas.grids(few, 2), key=sum), "rows": even(size, few)}
    changes: dict[str, tuple[str, dict[str, Any]]] = {
        f"blocks on 1 x {workers}": ("high", {"grid": flat}),
        count(few, "worker"): ("high", half),
        "uneven rows": ("high", {"rows": uneven}),
        "the other tile": ("low", {"tile": other}),
        "threads read down columns": ("low", {"down": True}),
        "a tensor-core kernel": ("low", {"kernel": "mma_multistage"}),
    }
    now, *then = (
        _numbers(size, device=device, **usual | change)
        for change in ({}, *(change for _, change in changes.values()))
    )
    after = dict(zip(changes, then, strict=True))
    lines, levels, numbers = [], dict[str, str](), dict[str, float]()
    for goal, (metric, number) in now.items():
        moved = {name: new[goal][1] for name, new in after.items() if new[goal][1] != number}
        numbers[goal], level = number, " and ".join(dict.fromkeys(changes[n][0] for n in moved))
        levels[goal] = level
        by = ", ".join(f"{new:,.12g} with {name}" for name, new in moved.items())
        lines.append(f"{level}: {goal}. {metric}: {number:,.12g}; {by}")
    high, low = ([goal for goal in levels if levels[goal] == at] for at in ("high", "low"))
    highs, lows, shape = len(high), len(low), (size,) * 3
    products = {
        f"{named(grid)}, tiles of {t}": (
            Blocking(grid, tile=t), ITEM * size**2 * (sum(grid) - 2))
        for grid, t in ((square, tile), (flat, tile), (square, other))
    }  # fmt: skip
    return locals()
