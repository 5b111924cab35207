"""1, 4, 7 and 10: one large product over workers: where it is cut, what moves, any plan judged.

p x q x r workers cut m, n and k        A comes to the q workers of a row,    m k (q - 1)
of the m x n x k multiplications        B to the p workers of a column,       k n (p - 1)
                                        r partial sums of C are added up      m n (r - 1)
"""

from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from itertools import product
from math import ceil, isqrt, prod
from typing import NamedTuple

import numpy as np

import tiledask as td
from tiledask.distributed.products.memory import ledger_of
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab.course import runs
from tiledask.lab.course.question import Names, cut_over, question
from tiledask.lab.course.runs import Blocking
from tiledask.plan.collectives.cost import even
from tiledask.plan.inputs.hardware import load_device
from tiledask.plan.products.cost import MachineRates, product_seconds
from tiledask.plan.products.product_plan import RUNTIME, ProductPlan
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.tile.backend import accumulator, as_dtype

FLOAT, ITEM = np.dtype("float32"), 4
"""What is multiplied where nothing else is named, and its bytes."""
STRATEGIES = "column_parallel", "row_parallel", "summa", "cannon", "gather"
Grid = tuple[int, ...]


def named(over: Grid) -> str:
    return "x".join(map(str, over))


def _named(grids: Collection[Grid], blocking: str, workers: int) -> list[Grid]:
    """The one that is called so, or all for "auto"."""
    if found := [over for over in grids if blocking in ("auto", named(over))]:
        return found
    raise ConfigError(
        f"a blocking of {blocking} is not one of {workers} workers with something for each; there "
        f"are {', '.join(map(named, grids)) or 'none'}"
    )


@question(1)
def two_levels(
    m: int, n: int, k: int, dtype: str, workers: int, memory: int, blocking: str, tile: int
) -> Names:
    """Every blocking with what it moves and holds; the tiles of the blocks of the chosen one."""
    of, flops, shape = as_dtype(dtype), 2 * m * n * k, (m, n, k)
    item, grids = of.itemsize, td.formulas.grids(workers, 2)
    plans = {g: Blocking(g).plan(m, n, k) for g in grids if g[0] <= min(m, k) and g[1] <= min(n, k)}
    moved = {over: plan.traffic(item).total for over, plan in plans.items()}
    ledgers = {over: ledger_of(plan, of, "tiled", tile) for over, plan in plans.items()}
    held = {over: ledger.peak for over, ledger in ledgers.items()}
    asked = _named(plans, blocking, workers)
    p, q = chosen = min(asked, key=lambda g: (held[g] > memory, moved[g], held[g]))
    peak, sent, left = held[chosen], moved[chosen], memory - held[chosen]
    if left < 0:
        needs = f"a worker would hold {format_bytes(peak)}, of {format_bytes(memory)}"
        raise ConfigError(f"{needs}, {RUNTIME:,} B of it runtime; more workers, or more memory")
    rows, columns, ways = (
        even(m, p),
        even(n, q),
        [(*over, moved[over], held[over]) for over in held],
    )
    loads, in_tile = runs.loaded(plans[chosen], tile, item), tile / item
    inside = contents(ledgers[chosen])
    intensity = flops / loads
    full = f" (a full tile {in_tile:.4g})" * (round(intensity, 3) != round(in_tile, 3))
    across, down = -(-max(columns) // tile), -(-max(rows) // tile)
    products = {f"tiles of {t}": (Blocking(chosen, tile=t), sent) for t in (tile, 32)}
    return locals()


@question(4)
def methods(rows: int, inner: int, columns: int, gpus: int, room: int) -> Names:
    """What each method holds of A and sends, and which of them bring A below the room.

    Rings: an all-reduce of s bytes over n sends 2 (n - 1) s, a broadcast or a sum (n - 1) s.
    """
    cut_over(gpus, rows=rows, inner=inner, columns=columns)
    x, a, y = (ITEM * s * n for s, n in ((rows, inner), (inner, columns), (rows, columns)))
    p = next(p for p in range(isqrt(gpus), 0, -1) if gpus % p == 0)
    q, ring, S, R = gpus // p, 2 * (gpus - 1), td.Shard, td.Replicate()
    shape = rows, columns, inner
    panels = (q - 1) * x + (p - 1) * a
    # method -> (fullest block of A, bytes forward, bytes backward, of what)
    table = {
        "columns of A": ((inner, -(-columns // gpus)), 0, ring * x, "dX all-reduced"),
        "rows of A": ((-(-inner // gpus), columns), ring * y, 0, "Y all-reduced"),
        "rows of X": ((inner, columns), 0, ring * a, "dA all-reduced"),
        "whole layers": ((inner, columns), y, y, "Y on, and dY back"),
        "blocks of A": ((-(-inner // p), -(-columns // q)), panels, 2 * panels, "panels, sums"),
    }
    held = {name: ITEM * prod(block) for name, (block, *_) in table.items()}
    lines = {name: (held[name], *sent) for name, (_, *sent) in table.items()}
    both = {name: [up, down] for name, (_, up, down, _) in table.items()}
    fitting = [name for name, nbytes in held.items() if nbytes <= room]
    fits, cut = ", ".join(fitting) or "None", [name for name in held if held[name] < a]
    products = {
        "columns of A": (Blocking((gpus,), "gather", placed=((R,), (S(1),))), 0),
        "blocks of A": (Blocking((p, q)), panels),
    }
    return locals()


LAYERS = td.Shard(0), td.Shard(1), td.Replicate()
"""A and B over p and q; each of r layers has them."""


def contents(ledger: td.Ledger) -> list[str]:
    """What the fullest place holds, the largest first."""
    place, moment, _ = ledger.binding
    found = sorted(ledger.by_tensor(place, moment).items(), key=lambda row: -row[1])
    held = {name: format_bytes(nbytes) for name, nbytes in found if nbytes}
    return [f"{name}{' (8 MiB + 2 %)' * (name == 'runtime')} {n}" for name, n in held.items()]


def kind(over: Grid) -> str:
    """Of a cut: 1-D, 2-D, 2.5-D or 3-D."""
    cut = sum(parts > 1 for parts in over)
    if over[2] == 1 or cut == 1:
        return f"{cut}-D"
    return "3-D" if len({*over}) == 1 else "2.5-D"


@question(7)
def cuts(m: int, n: int, k: int, dtype: str, workers: int, memory: int) -> Names:
    """Every grid by its formula, which fit, and the least of all."""
    of, extents = as_dtype(dtype), (m, n, k)
    item, wide = of.itemsize, accumulator(of).itemsize
    ways = {
        (p, q, r): Blocking((p, q, r), "2.5d", placed=(LAYERS, LAYERS))
        for p, q, r in td.formulas.grids(workers, 3)
        if p <= min(m, k) and q <= min(n, k) and r <= min(m, k)
    }
    if not ways:
        raise ConfigError(f"{m} x {n} x {k} cannot be cut for {workers} workers; take fewer")
    plans = {over: way.plan(m, n, k) for over, way in ways.items()}
    moved = {over: plan.traffic(item, wide).total for over, plan in plans.items()}
    ledgers = {over: ledger_of(plan, of) for over, plan in plans.items()}
    held = {over: ledger.peak for over, ledger in ledgers.items()}
    fitting = [over for over in plans if held[over] <= memory]
    best = min(fitting, key=lambda over: (moved[over], over[2]), default=None)
    lean = best or min(plans, key=held.__getitem__)
    names = {over: f"{' x '.join(map(str, over))}, {kind(over)}" for over in plans}
    chosen, peak, least, fit = names[lean], held[lean], moved[lean], len(fitting)
    grids, inside = len(plans), contents(ledgers[lean])
    p, q = min(td.formulas.grids(workers, 2), key=lambda grid: (max(grid), grid))
    begin, spread = [td.Tiling(shape, (p, q), runs.GRID) for shape in ((m, k), (k, n))], {}
    for over in plans:
        with suppress(PlacementError):  # too small for it
            total = td.algorithms["3d"](*begin, grid=over).traffic(item, wide).total
            if over[2] > 1:
                words = f"{format_bytes(total)} received from {p} x {q} blocks without copies"
                spread[over] = f"; {words}"
    lines = {names[o]: (moved[o], held[o], held[o] > memory, spread.get(o, "")) for o in plans}
    products = {}
    for p, q, r in {kind(over): over for over in [*plans, lean]}.values():
        formula = item * (m * k * (q - 1) + k * n * (p - 1)) + wide * m * n * (r - 1)
        products[names[p, q, r]] = ways[p, q, r], formula
    by_name = [{named(over): nbytes for over, nbytes in of.items()} for of in (moved, held)]
    return locals()


# -- 10: any plan judged ---------------------------------------------------------------------------


class Proposal(NamedTuple):
    """A plan of a product in tiles, and what it comes to on GPUs of which the limits are known."""

    way: Blocking
    plan: ProductPlan
    moved: int
    held: int
    loaded: int
    seconds: float

    def __str__(self) -> str:
        p, q = self.way.grid
        return f"{self.way.algorithm} on {p} x {q}, tiles of {self.way.tile}"


@lru_cache(1024)
def _proposal(shape: tuple[int, int, int], way: Blocking, device: str) -> Proposal:
    """By formula: tiles at their roofline, messages at the same time."""
    plan, there = way.plan(*shape), td.load_cluster(f"{prod(way.grid)}x{device}")
    gpu, link, loaded = there.device, there.within_node, runs.loaded(plan, way.tile)
    rates = MachineRates(
        flops=min(gpu.peak("fp32"), 2 * float(prod(shape)) / loaded * gpu.memory_bandwidth),
        touch=gpu.memory_bandwidth, call=0.0, read=link.reached, message=link.latency, run=0.0,
        task=0.0, overlapped=True,
    )  # fmt: skip
    held = ledger_of(plan, FLOAT, "tiled", way.tile).peak
    seconds, _ = product_seconds(plan, ITEM, ITEM, rates)
    return Proposal(way, plan, plan.traffic(ITEM).total, held, loaded, seconds)


def _others(shape: tuple[int, int, int], given: Blocking, device: str) -> list[Proposal]:
    """Every strategy on every grid, in every tile."""
    found = []
    for grid, name in product(td.formulas.grids(prod(given.grid), 2), STRATEGIES):
        for tile in dict.fromkeys((given.tile, 16, 32, 64, 128, 256)):
            with suppress(PlacementError):
                found.append(_proposal(shape, Blocking(grid, name, tile), device))
    return found


def _time(seconds: float) -> str:
    return format_seconds(seconds) if seconds >= 1e-6 else f"{1e9 * seconds:.3g} ns"


@question(10)
def critique(
    m: int, n: int, k: int, workers: int, blocking: str, strategy: str, tile: int, memory: int,
    device: str,
) -> Names:  # fmt: skip
    """Six points of the plan, and what would be better.

    Advised is the fastest that fits and neither moves nor loads more, in the smallest tile that
    feeds the device, if it is faster by more than rounding; of a plan that does not fit, the
    fastest that does.
    """
    shape, flops, grids = (m, n, k), 2 * float(m * n * k), [*td.formulas.grids(workers, 2)]
    grids.sort(key=lambda g: (max(g), [-n for n in g]))  # the squarest first
    way = Blocking(_named(grids, blocking, workers)[0], strategy, tile)
    given, ridge = _proposal(shape, way, device), td.tile.ridge(device)
    others, fits, now = _others(shape, way, device), given.held <= memory, given.seconds
    alike = [other for other in others if other.way.tile == tile]
    least = min(o.moved for o in [given, *([o for o in alike if o.held <= memory] or alike)])
    each = [float(prod(given.plan.extents(rank))) for rank in range(workers)]
    balance, reuse, sums = max(each) * workers / sum(each), flops / given.loaded, given.plan.sums
    ideal = flops / workers / load_device(device).peak("fp32")
    points = {
        "memory": fits,
        "balance": balance <= 1.1,
        "traffic": given.moved <= 1.1 * least,
        "barriers": not sums,
        "tiles": reuse >= ridge,
        "time": now <= 2 * ideal,
    }
    faults, taken = [name for name, good in points.items() if not good], _time(now)
    extent, times = ceil(ITEM * ridge), now / ideal
    better = [o for o in others if o.held <= memory]
    if fits:
        lean = (o for o in better if o.moved <= given.moved and o.loaded <= given.loaded)
        better = [o for o in lean if o.seconds < now and _time(o.seconds) != taken]
    better.sort(key=lambda o: (o.seconds, max(0.0, ridge - flops / o.loaded), o.way.tile))
    after = [*better, given][0]
    end = f"No other plan that moves and loads no more is faster than {taken}"
    if better:
        end = f"Take {after}: {_time(after.seconds)} for {taken}"
    elif not fits:
        end = f"No plan fits: all hold {format_bytes(min(o.held for o in others))} or more"
    products = {str(plan): (plan.way, plan.moved) for plan in (given, after)}
    left = memory - given.held
    return locals()
