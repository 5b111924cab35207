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
from tiledask.distributed.products.needed import ledger_of
from tiledask.errors import ConfigError, PlacementError
from tiledask.lab.course import runs
from tiledask.lab.course.question import Worked, count, cut_over, question, shares
from tiledask.lab.course.runs import Blocking
from tiledask.plan.collectives.cost import even
from tiledask.plan.inputs.hardware import load_device
from tiledask.plan.ledger import Ledger
from tiledask.plan.products.cost import MachineRates, cost
from tiledask.plan.products.placement import Tiling
from tiledask.plan.products.product import plan_product
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


def contents(ledger: Ledger) -> str:
    """What the fullest place holds, the largest first."""
    place, moment, _ = ledger.binding
    found = sorted(ledger.by_tensor(place, moment).items(), key=lambda row: -row[1])
    words = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in found if nbytes)
    return words.replace("runtime", "runtime (8 MiB + 2 %)")


@question(1)
def two_levels(
    m: int, n: int, k: int, dtype: str, workers: int, memory: int, blocking: str, tile: int
) -> Worked:
    """Every blocking with what it moves and holds; the tiles of the blocks of the chosen one."""
    of, flops = as_dtype(dtype), 2 * m * n * k
    item, grids = of.itemsize, td.formulas.grids(workers, 2)
    plans = {g: Blocking(g).plan(m, n, k) for g in grids if g[0] <= min(m, k) and g[1] <= min(n, k)}
    moved = {over: plan.traffic(item).total for over, plan in plans.items()}
    ledgers = {over: ledger_of(plan, of, "tiled", tile) for over, plan in plans.items()}
    asked = _named(plans, blocking, workers)
    p, q = chosen = min(asked, key=lambda g: (ledgers[g].peak > memory, moved[g], ledgers[g].peak))
    peak, rows, columns = ledgers[chosen].peak, even(m, p), even(n, q)
    if peak > memory:
        held = f"a worker would hold {format_bytes(peak)}, of {format_bytes(memory)}"
        raise ConfigError(f"{held}, {RUNTIME:,} B of it runtime; more workers, or more memory")
    loads, in_tile = runs.loaded(plans[chosen], tile, item), tile / item
    full = f" (a full tile {in_tile:.4g})" * (round(flops / loads, 3) != round(in_tile, 3))
    products = {f"tiles of {t}": (Blocking(chosen, tile=t), moved[chosen]) for t in (tile, 32)}
    return Worked(
        f"{p} x {q} blocks of {shares(rows)} rows x {shares(columns)} columns; tiles load "
        f"{format_bytes(loads)}, {flops / loads:.4g} FLOP a byte{full}.",
        f"level 1, A, B and C in p x q blocks: (m k (q - 1) + k n (p - 1)) x {item} B received",
        *(f"{a} x {b}: {format_bytes(moved[a, b])} in all, a worker holds "
          f"{format_bytes(by.peak)} at most" for (a, b), by in ledgers.items()),
        f"level 2: A is loaded {-(-max(columns) // tile)} times, B {-(-max(rows) // tile)}; a "
        f"full tile: 2 x {tile}^3 FLOP / (2 x {tile}^2 x {item} B) = {in_tile:.4g} FLOP a byte",
        values={"blocking": [p, q], "sent": moved[chosen], "held": peak, "loaded": loads,
                "intensity": in_tile, "intensity in all": flops / loads,
                "room left": memory - peak},
        run=lambda cluster: runs.multiplied(cluster, (m, n, k), products, dtype),
    )  # fmt: skip


@question(4)
def methods(rows: int, inner: int, columns: int, gpus: int, room: int) -> Worked:
    """What each method holds of A and sends, and which of them bring A below the room.

    Rings: an all-reduce of s bytes over n sends 2 (n - 1) s, a broadcast or a sum (n - 1) s.
    """
    cut_over(gpus, rows=rows, inner=inner, columns=columns)
    x, a, y = (ITEM * s * n for s, n in ((rows, inner), (inner, columns), (rows, columns)))
    p = next(p for p in range(isqrt(gpus), 0, -1) if gpus % p == 0)
    q, ring, S, R = gpus // p, 2 * (gpus - 1), td.Shard, td.Replicate()
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
    fitting = [name for name, nbytes in held.items() if nbytes <= room]
    cut = ", ".join(name for name, nbytes in held.items() if nbytes < a)
    products = {
        "columns of A": (Blocking((gpus,), "gather", placed=((R,), (S(1),))), 0),
        "blocks of A": (Blocking((p, q)), panels),
    }
    return Worked(
        f"Those that cut A itself: {cut}; all others leave {format_bytes(a)} of A on a GPU. "
        f"{', '.join(fitting) or 'None'} fit {format_bytes(room)}.",
        f"A is {inner} x {columns} x {ITEM} B = {format_bytes(a)}; bytes below are those of "
        f"all {gpus} GPUs: an all-reduce of s bytes sends 2 ({gpus} - 1) s",
        *(f"{name}: {format_bytes(held[name])} of A on the fullest GPU; forward "
          f"{format_bytes(up)}, backward {format_bytes(down)}: {what}"
          for name, (_, up, down, what) in table.items()),
        values={"bytes of A": held, "fit": fitting,
                "sent": {name: [up, down] for name, (_, up, down, _) in table.items()}},
        run=lambda cluster: runs.multiplied(cluster, (rows, columns, inner), products),
    )  # fmt: skip


LAYERS = td.Shard(0), td.Shard(1), td.Replicate()
"""A and B over p and q; each of r layers has them."""


def kind(over: Grid) -> str:
    """Of a cut: 1-D, 2-D, 2.5-D or 3-D."""
    cut = sum(parts > 1 for parts in over)
    if over[2] == 1 or cut == 1:
        return f"{cut}-D"
    return "3-D" if len({*over}) == 1 else "2.5-D"


@question(7)
def cuts(m: int, n: int, k: int, dtype: str, workers: int, memory: int) -> Worked:
    """Every grid by its formula, which fit, and the least of all."""
    of = as_dtype(dtype)
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
    fitting = [over for over in plans if ledgers[over].peak <= memory]
    best = min(fitting, key=lambda over: (moved[over], over[2]), default=None)
    lean = best or min(plans, key=lambda over: ledgers[over].peak)
    peak, among = format_bytes(ledgers[lean].peak), count(len(plans), "grid")
    names = {over: f"{' x '.join(map(str, over))}, {kind(over)}" for over in plans}
    answer = f"None of {among} fits {format_bytes(memory)}: each needs {peak} or more on a worker."
    if best:
        answer = (
            f"{names[best]}, of {among}: the least received, {format_bytes(moved[best])} in all."
        )
    square = min(td.formulas.grids(workers, 2), key=lambda grid: (max(grid), grid))
    begin, spread = [Tiling(shape, square, runs.GRID) for shape in ((m, k), (k, n))], {}
    for over in plans:
        with suppress(PlacementError):  # too small for it
            total = plan_product("3d", *begin, grid=over).traffic(item, wide).total
            where = f"{square[0]} x {square[1]} blocks"
            if over[2] > 1:
                spread[over] = f"; {format_bytes(total)} received from {where} without copies"
    products = {}
    for p, q, r in {kind(over): over for over in [*plans, lean]}.values():
        formula = item * (m * k * (q - 1) + k * n * (p - 1)) + wide * m * n * (r - 1)
        products[names[p, q, r]] = ways[p, q, r], formula
    return Worked(
        answer,
        f"A and B lie in p x q blocks, a copy on each of the r layers; workers receive {item} B x "
        f"(m k (q - 1) + k n (p - 1)) + {wide} B x m n (r - 1)",
        *(f"{names[over]}: {format_bytes(moved[over])} received, {format_bytes(by.peak)} held "
          f"at most{', too much' * (by.peak > memory)}{spread.get(over, '')}"
          for over, by in ledgers.items()),
        f"{names[lean]}: its fullest worker holds {contents(ledgers[lean])}",
        values={"moved": {named(over): nbytes for over, nbytes in moved.items()},
                "held": {named(over): by.peak for over, by in ledgers.items()},
                "fit": len(fitting), "best": best and list(best)},
        run=lambda cluster: runs.multiplied(cluster, (m, n, k), products, dtype),
    )  # fmt: skip


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
        task=0.0, request=0.0, overlapped=True,
    )  # fmt: skip
    held = ledger_of(plan, FLOAT, "tiled", way.tile).peak
    seconds = cost(plan, ITEM, ITEM, rates).total
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
) -> Worked:  # fmt: skip
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
    points = {  # what is good -> whether it is, and why
        "memory": (fits, f"{format_bytes(given.held)} held, of {format_bytes(memory)}"),
        "balance": (balance <= 1.1, f"{balance:.3g} times the mean FLOP on one; 1.1 at most"),
        "traffic": (given.moved <= 1.1 * least, f"{format_bytes(given.moved)} received; "
                    f"{format_bytes(least)} would do; 1.1 times that at most"),
        "barriers": (not sums, "partial sums of C wait for all" if sums else "none"),
        "tiles": (reuse >= ridge, f"{reuse:.3g} FLOP a byte loaded; the {device} needs "
                  f"{ridge:.3g}, tiles of {ceil(ITEM * ridge)}"),
        "time": (now <= 2 * ideal, f"{_time(now)}, {now / ideal:,.4g} times the ideal; 2 at most"),
    }  # fmt: skip
    faults = [name for name, (good, _) in points.items() if not good]
    better = [o for o in others if o.held <= memory]
    if fits:
        lean = (o for o in better if o.moved <= given.moved and o.loaded <= given.loaded)
        better = [o for o in lean if o.seconds < now and _time(o.seconds) != _time(now)]
    better.sort(key=lambda o: (o.seconds, max(0.0, ridge - flops / o.loaded), o.way.tile))
    after = [*better, given][0]
    end = f"No other plan that moves and loads no more is faster than {_time(now)}"
    if better:
        end = f"Take {after}: {_time(after.seconds)} for {_time(now)}"
    elif not fits:
        end = f"No plan fits: all hold {format_bytes(min(o.held for o in others))} or more"
    products = {str(plan): (plan.way, plan.moved) for plan in (given, after)}
    return Worked(
        f"Faults of {given}: {', '.join(faults) or 'none'}. {end}.",
        *(f"{name}: {'good' if ok else 'a fault'}: {why}" for name, (ok, why) in points.items()),
        values={"faults": faults, "advised": str(after), "seconds": now,
                "seconds, advised": after.seconds, "moved": given.moved, "held": given.held,
                "loaded": given.loaded, "room left": memory - given.held},
        run=lambda cluster: runs.multiplied(cluster, shape, products),
    )  # fmt: skip
