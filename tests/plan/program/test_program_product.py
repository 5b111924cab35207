"""The program of a blocked product: its readers agree with the plan, and faults are named.

Holds `tiledask.plan.program.making.of_product`, `tiledask.plan.program.making.of_stream` and
`tiledask.plan.products.regions`.
"""

import random
from dataclasses import replace
from inspect import signature

import numpy as np
import pytest

import tiledask as td
from tiledask.distributed.out_of_core import streamed
from tiledask.distributed.products import lazy
from tiledask.errors import PlacementError, ProgramError
from tiledask.plan.products.placement import Partial, Replicate, Shard, Tiling
from tiledask.plan.products.product import algorithms, options_of, plan_product
from tiledask.plan.products.product_plan import AHEAD
from tiledask.plan.products.regions import around, overlap, region_size
from tiledask.plan.products.streaming import Cuts, Problem, StorageLayout, plan_cuts
from tiledask.plan.program.instructions import Do, Fetch, Keep
from tiledask.plan.program.making.of_product import multiply_program, sum_program
from tiledask.plan.program.making.of_stream import stream_program

MESHES = (1,), (3,), (4,), (2, 2), (2, 3), (4, 2), (2, 2, 2)


def drawn_plans(seed, count):
    """Plans of every algorithm over ragged shapes, batches, vectors, meshes and placements."""
    rng, found = random.Random(seed), []
    while len(found) < count:
        mesh = rng.choice(MESHES)
        lead = rng.choice([(), (rng.randint(1, 9),), (rng.randint(1, 4), rng.randint(1, 5))])
        k, columns = rng.randint(1, 40), rng.choice([(), (rng.randint(1, 12),)])
        shapes = (*lead, k), (k, *columns)
        placed = [
            [rng.choice([Replicate(), Partial(), *map(Shard, range(len(s)))]) for _ in mesh]
            for s in shapes
        ]
        options = {"panel": rng.choice([1, 3, 7, 512])} if rng.random() < 0.5 else {}
        try:
            tilings = [Tiling(s, mesh, tuple(p)) for s, p in zip(shapes, placed, strict=True)]
            found.append(plan_product(rng.choice(list(algorithms)), *tilings, **options))
        except (PlacementError, TypeError):
            continue
    return found


def programs(plan, size=4, wide=4):
    return [multiply_program(plan, size, wide)] + [sum_program(plan, size, wide)] * plan.sums


@pytest.mark.few(40)
@pytest.mark.parametrize("seed", range(200))
def test_bytes_are_what_the_plan_says_and_panels_stay_in_two_rooms(seed):
    for plan in drawn_plans(seed, 10):
        both = programs(plan, 2, 4)
        total = sum((p.check().traffic for p in both[1:]), both[0].check().traffic)
        assert total == plan.traffic(2, 4)
        for rank in range(plan.ranks):
            stays = both[0].role(rank).stays
            rooms = [size for name, size in stays.items() if name.startswith("room")]
            pieces = max((len(p.a) + len(p.b) for p in plan.panels[rank]), default=0)
            assert len(rooms) <= AHEAD
            assert max(rooms, default=0) <= 2 * plan.held(rank) + 64 * pieces
            assert both[0].memory.per_place[rank] == sum(stays.values())


@pytest.mark.few(20)
@pytest.mark.parametrize("seed", range(60))
def test_gone_through_with_numbers_it_gives_the_product(seed):
    """An obvious walk of the instructions, one after the other, on arrays of integers."""
    for plan in drawn_plans(1000 + seed, 4):
        rng = np.random.default_rng(seed)
        blocks = {}
        for name, tiling in (("A", plan.a), ("B", plan.b)):
            mine = [rng.integers(-4, 5, [b - a for a, b in r]) for r in tiling.regions]
            blocks[name] = mine
            for rank in range(plan.ranks):  # replicas hold the same numbers
                fixed = [x for x in range(len(tiling.mesh)) if tiling.placements[x] == Replicate()]
                at = [0 if x in fixed else i for x, i in enumerate(tiling.at(rank))]
                mine[rank] = mine[tiling.rank(tuple(at))]
        made = [walked(p, blocks, plan) for p in programs(plan)[:1]]
        if plan.sums:
            blocks["partial"] = made[0]
            made.append(walked(programs(plan)[1], blocks, plan))
        whole = {name: summed(t, blocks[name]) for name, t in (("A", plan.a), ("B", plan.b))}
        if Partial() in (*plan.a.placements, *plan.b.placements) and plan.walk.leave:
            continue  # partial sums of operands multiply to partial sums
        np.testing.assert_array_equal(summed(plan.result, made[-1]), whole["A"] @ whole["B"])


def summed(tiling, blocks):
    """The array that blocks are: partial sums added up, replicas taken once."""
    whole = np.zeros(tiling.shape, np.int64)
    for rank, region in enumerate(tiling.regions):
        at = zip(tiling.at(rank), tiling.placements, strict=True)
        if not any(i and p == Replicate() for i, p in at):
            whole[(*(slice(*ends) for ends in region), ...)] += blocks[rank]
    return whole


def walked(program, blocks, plan):
    tilings = {"A": plan.a, "B": plan.b, "partial": plan.work}
    target = plan.work if "partial" not in program.role(0).stays else plan.result
    found = []
    for rank in range(plan.ranks):
        region = target.regions[rank]
        c = np.full([b - a for a, b in region], 999)
        held = {name: mine[rank] for name, mine in blocks.items()}

        def at(where, whole):
            ends = zip(where, whole, strict=True)
            return *(slice(a - start, b - start) for (a, b), (start, _) in ends), ...

        for each in program.role(rank).parts[0].instructions:
            if isinstance(each, Fetch):
                owner = tilings[each.array].regions[each.source]
                part = blocks[each.array][each.source][at(each.region, owner)].copy()
                if each.buffer == "C":
                    place = c[at(each.region, region)]
                    place[...] = place + part if each.adds else part
                else:
                    held[each.buffer] = part
            elif isinstance(each, Do):
                kernel(each, held, c, region, at)
        found.append(c)
    return found


def kernel(each, held, c, region, at):
    told = dict(each.options)
    if each.kernel == "clear":
        c[...] = 0
    elif each.kernel == "add_up":
        place = c[at(told["into"], region)]
        part = held["partial"][(*(slice(*ends) for ends in told["ends"]), ...)]
        place[...] = place + part if told["adds"] else part
    else:
        arrays = [held[name] for name in each.reads]
        both = [
            (where, x[tuple(slice(*e) for e in ends)] if ends else x)
            for (ends, where), x in zip((*told["a"], *told["b"]), arrays, strict=True)
        ]
        a, b = both[: len(told["a"])], both[len(told["a"]) :]
        for strip in told["into"]:
            lead = len(a[0][0]) - 1
            for of_a, x in a:
                for of_b, y in b:
                    where = overlap((*of_a[:-1], *of_b[1:]), strip)
                    if where is None:
                        continue
                    rows = x[at(where[:lead], of_a[:-1])[:-1]]
                    columns = y[(slice(None), *at(where[lead:], of_b[1:])[:-1])]
                    place = c[at(where, region)]
                    place[...] = (place if told["adds"] else 0) + rows @ columns


def summa():
    a = Tiling((8, 12), (2, 2), (Shard(0), Shard(1)))
    return plan_product("summa", a, Tiling((12, 8), (2, 2), (Shard(0), Shard(1))), panel=3)


def changed(program, change):
    """The program with rank 1's instructions changed."""
    role = program.roles[1]
    part = replace(role.parts[0], instructions=tuple(change(list(role.parts[0].instructions))))
    roles = (program.roles[0], replace(role, parts=(part,)), *program.roles[2:])
    return replace(program, roles=roles)


def test_faults_are_named():
    program = multiply_program(summa(), 4).check()

    def without_a_product(lines):
        products = [i for i, each in enumerate(lines) if isinstance(each, Do)]
        return lines[: products[0]] + lines[products[0] + 1 :]

    def from_itself(lines):
        return [replace(x, source=1) if isinstance(x, Fetch) else x for x in lines]

    def into_a_room_too_small(lines):
        return [replace(x, at=10**6) if isinstance(x, Fetch) else x for x in lines]

    def twice(lines):
        return [lines[0], *lines]

    for change, words in (
        (without_a_product, "fetched over what nothing has read|left over"),
        (from_itself, "a fetch is from another one of the 4 ranks"),
        (into_a_room_too_small, "give it more, or cut narrower panels"),
        (twice, "fetched over what nothing has read"),
    ):
        with pytest.raises(ProgramError, match=words):
            changed(program, change).check()


def test_what_is_fetched_comes_while_work_is_done():
    program = multiply_program(summa(), 4)
    lines = [role.parts[0].instructions for role in program.roles]
    products, fetches = (
        max(sum(isinstance(each, kind) for each in line) for line in lines) for kind in (Do, Fetch)
    )
    took = 2.0 * products
    alone = program.timeline(lambda each: 2.0, latency=0.0).makespan
    beside = program.timeline(lambda each: 2.0, latency=0.5).makespan
    assert alone == took
    assert took <= beside < took + 0.5 * fetches
    slow = program.timeline(lambda each: 1e-3, latency=0.5).makespan
    assert 0.5 * fetches < slow < 0.5 * fetches + 1e-3 * products


def test_its_text_is_the_program():
    for program in programs(summa()):
        assert td.Program.from_text(program.to_text()).to_text() == program.to_text()


@pytest.mark.parametrize("begun", [0, 3, 6, 10])
def test_a_product_of_files_is_a_line_that_begins_where_it_was_left(begun):
    a, b, c = (StorageLayout(shape, 4) for shape in ((9, 10), (10, 7), (9, 7)))
    cuts = Cuts((0, 5, 9), (0, 4, 7), 3)
    plan = plan_cuts(Problem(a, b, c, 4), cuts, 3, 10**9)
    plan = plan.remaining(dict.fromkeys(list(cuts.regions)[:2], begun))
    program = stream_program(plan).check()
    lines = [each for role in program.roles for part in role.parts for each in part.instructions]
    assert sum(each.nbytes for each in lines if isinstance(each, Fetch)) == plan.bytes_read
    kept = {each.region for each in lines if isinstance(each, Keep) and not each.partial}
    assert kept == {tile.region for tile in plan.tiles}
    assert sum(isinstance(each, Do) for each in lines) == plan.panels
    assert program.traffic.total == 0
    panels = {row.place: 0 for row in plan.ledger.rows}
    for row in plan.ledger.rows:
        if row.tensor in ("accumulator", "panels"):
            panels[row.place] += row.bytes
    for slot, held in program.memory.per_place.items():
        assert held <= panels.get(slot, 0)


def test_what_lies_around_a_hole_is_the_rest():
    region = ((0, 9), (2, 5))
    strips = list(around(region, ((3, 6), (2, 5))))
    assert sum(map(region_size, strips)) == 27 - 9
    assert list(around(region, ((4, 4), (2, 5)))) == [region]
    assert overlap(strips[0], strips[1]) is None


def test_options_are_those_that_functions_take():
    for name, plan in algorithms.items():
        assert options_of(name) == tuple(signature(plan).parameters)[2:]
    for multiply, options in (
        (lazy.multiply, lazy.OPTIONS),
        (streamed.multiply_stored, streamed.OPTIONS),
    ):
        assert options == tuple(signature(multiply).parameters)[2:]
