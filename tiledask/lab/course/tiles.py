"""6, 8 and 9: tiles within a worker or blocks over workers: which is at fault, and what each does.

high   blocks over workers    memory, traffic, balance, how many devices
low    tiles within a worker  reuse, coalesced loads, tensor cores, occupancy
"""

from collections.abc import Callable
from math import ceil
from typing import Any, NamedTuple

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.course import runs
from tiledask.lab.course.products import ITEM, Grid, named
from tiledask.lab.course.question import Worked, count, question
from tiledask.lab.course.runs import Blocking
from tiledask.plan.collectives.cost import even
from tiledask.plan.inputs.hardware import load_device
from tiledask.plan.units import format_bytes
from tiledask.tile.choice import Prediction
from tiledask.tile.choice.residency import refusal


@question(6)
def level_at_fault(size: int, workers: int, device: str, largest: float) -> Worked:
    """What tiles load and how fast that lets a device be; how long blocks make workers wait."""
    first, ridge, flop = round(largest * size), td.tile.ridge(device), 2 * size**3
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
    none = f"no tile: a block as one tile gives {most:.4g} of the {ridge:.2f} FLOP a byte"
    sent = ITEM * size * size * (workers - 1)
    products = {f"T = {tile}": (Blocking((1, workers), tile=tile), sent) for tile in (8, 16, 32)}
    return Worked(
        f"If all workers are busy alike, it is the low level: tiles of 32 allow "
        f"{100 * share[32]:.0f} % of the peak; for all of it: "
        f"{f'tiles of {enough}' if enough else none}. If kernels are fast and some workers idle, "
        f"it is the high level.",
        *(f"low level, tiles of {tile}: {format_bytes(loads[tile])} loaded, {each:.4g} FLOP a "
          f"byte, {100 * share[tile]:.1f} % of the peak" for tile, each in reuse.items()),
        f"ridge of the {device}: {ridge:.2f} FLOP a byte: T of {extent} or more",
        f"high level, the most rows on a worker: busy {size / workers:.4g} / {rows} = "
        f"{100 * used:.1f} % of the time",
        values={"loaded": [*loads.values()], "intensity": [*reuse.values()],
                "share of the peak": [*share.values()], "tile at the ridge": extent,
                "tile that allows all": enough, "busy, uneven blocks": used},
        run=lambda cluster: runs.multiplied(cluster, (size,) * 3, products),
    )  # fmt: skip


@question(8)
def carried_tile(kernel: str, tuned_on: str, runs_on: str, m: int, n: int, k: int) -> Worked:
    """Shared memory, occupancy, waves and bound of both tiles on the new device."""

    def best_on(device: str) -> Prediction:
        if found := td.tile.candidates(kernel, device):
            return td.tile.order(m, n, k, found, device)[0]
        why = refusal(td.tile.config_of(kernel), device)
        raise ConfigError(f"{kernel} does not run on {device}: {why}; take smem_tiled")

    old, new = best_on(tuned_on), best_on(runs_on)
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
    products = {f"a tile of {tile}": (Blocking((1, 1), tile=tile), 0) for tile in (16, 64, 256)}
    return Worked(
        f"{answer}. The blocks over GPUs stay as they are.",
        *(f"{name}: {each.occupancy}; {each.flops_per_second / 1e12:.4g} TFLOP/s at most, "
          f"bound by {each.binding}" for name, each in shown.items()),
        *([f"the old tile on the {runs_on} does not start: {why_not}"] if why_not else []),
        f"1 - {reached / 1e12:.4g} / {best / 1e12:.4g} = {100 * loss:.1f} % given away",
        values={"tile before": list(old.config.block), "tile after": list(new.config.block),
                "given away": loss, "times as fast, carried": reached / old.flops_per_second,
                "times as fast, tuned anew": best / old.flops_per_second,
                "blocks a multiprocessor": [old.occupancy.blocks, new.occupancy.blocks]},
        run=lambda cluster: runs.multiplied(cluster, (512, 512, 512), products),
    )  # fmt: skip


# -- 9: eight goals, each a number that moves with one level ---------------------------------------


class Setup(NamedTuple):
    """One way to compute a size x size x size product."""

    size: int
    grid: Grid
    rows: Grid
    """Rows of C of each worker, where they are dealt out by rows."""
    tile: int
    device: str
    down: bool = False
    """Whether neighbouring threads read down a column."""
    kernel: str = "smem_tiled"

    @property
    def config(self) -> Any:
        """How the GPU kernel tiles."""
        found = td.tile.candidates(self.kernel, self.device)
        of_tile = [c for c in found if c.block == (self.tile,) * 3]
        return of_tile[0] if of_tile else td.tile.config_of(self.kernel)

    @property
    def occupancy(self) -> Any:
        return td.tile.occupancy(self.config, self.device)


GOALS: dict[str, tuple[str, str, Callable[[Setup], float]]] = {
    "fit each part into a device's memory": (
        "high", "bytes of A, B and C on a worker",
        lambda s: 3 * ITEM * even(s.size, s.grid[0])[0] * even(s.size, s.grid[1])[0]),
    "move little between devices": (
        "high", "bytes between workers",
        lambda s: ITEM * s.size**2 * (s.grid[0] + s.grid[1] - 2)),
    "give every device as much to do": (
        "high", "FLOP of the fullest worker over the mean",
        lambda s: max(s.rows) * len(s.rows) / s.size),
    "choose how many devices": (
        "high", "FLOP a worker", lambda s: 2 * s.size**3 // (s.grid[0] * s.grid[1])),
    "use again what was loaded": (
        "low", "FLOP a byte that tiles load", lambda s: s.tile / ITEM),
    "load coalesced": (
        "low", "sectors of 32 bytes that a warp's load touches",
        lambda s: 32 if s.down else 32 * ITEM // 32),  # 32 threads of a warp
    "use tensor cores": (
        "low", "peak of the units that compute, TFLOP/s",
        lambda s: load_device(s.device).peak(s.config.peak) / 1e12),
    "hide latency by many warps": (
        "low", "warps on a multiprocessor", lambda s: s.occupancy.blocks * s.occupancy.warps),
}  # fmt: skip
"""Goal -> (its level, the number that tells, that number by formula)."""


@question(9)
def goals(size: int, workers: int, tile: int, device: str) -> Worked:
    """Every goal's number, as it is and after each change of one level."""
    if size % (2 * workers * 32) or workers % 2:
        rule = "blocks must be whole tiles: size a multiple of 64 x workers, and workers even"
        raise ConfigError(f"{rule}; got size {size} and {workers} workers")
    if why_not := refusal(td.tile.config_of("mma_multistage"), device):
        raise ConfigError(f"the tensor-core kernel does not run on a {device}: {why_not}")
    square = next(g for g in td.formulas.grids(workers, 2) if g[0] ** 2 >= workers)
    usual = Setup(size, square, even(size, workers), tile, device)
    few, part = workers // 2, size // (2 * workers)
    uneven = (size - (workers - 1) * part, *[part] * (workers - 1))
    half = usual._replace(grid=min(td.formulas.grids(few, 2), key=sum), rows=even(size, few))
    flat, other = usual._replace(grid=(1, workers)), usual._replace(tile=48 - tile)
    changes = {
        f"blocks on 1 x {workers}": ("high", flat),
        count(few, "worker"): ("high", half),
        "uneven rows": ("high", usual._replace(rows=uneven)),
        "the other tile": ("low", other),
        "threads read down columns": ("low", usual._replace(down=True)),
        "a tensor-core kernel": ("low", usual._replace(kernel="mma_multistage")),
    }
    lines, levels, numbers = [], dict[str, str](), dict[str, float]()
    for goal, (_, metric, number) in GOALS.items():
        usually = numbers[goal] = number(usual)
        after = {name: number(setup) for name, (_, setup) in changes.items()}
        moved = [name for name in changes if after[name] != usually]
        levels[goal] = " and ".join(dict.fromkeys(changes[name][0] for name in moved))
        by = ", ".join(f"{after[name]:,.12g} with {name}" for name in moved)
        lines.append(f"{levels[goal]}: {goal}. {metric}: {usually:,.12g}; {by}")
    high, low = ([goal for goal in levels if levels[goal] == at] for at in ("high", "low"))
    products = {
        f"{named(s.grid)}, tiles of {s.tile}": (
            Blocking(s.grid, tile=s.tile), ITEM * size**2 * (sum(s.grid) - 2))
        for s in (usual, flat, other)
    }  # fmt: skip
    return Worked(
        f"High level, blocks over devices ({len(high)}): {'; '.join(high)}. Low level, tiles "
        f"within a device ({len(low)}): {'; '.join(low)}.",
        *lines,
        values={"levels": levels, "numbers": numbers},
        run=lambda cluster: runs.multiplied(cluster, (size,) * 3, products),
    )
