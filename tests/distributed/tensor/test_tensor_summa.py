"""Linear layers on a grid of ranks: as on one device; bytes as planned; blocks that do not fit.

Holds `tiledask.distributed.tensor.summa`, `tiledask.plan.collectives.panels` and
`tiledask.plan.program.making.grid_layers`.
"""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.gradients import draw
from oracles.tensor_cases import assert_close

import tiledask as td
from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import PlacementError, ProgramError
from tiledask.plan.collectives import summa as plan
from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.panels import panels
from tiledask.plan.collectives.seconds import seconds
from tiledask.plan.products.placement import Shard
from tiledask.plan.program.calls import calls
from tiledask.plan.program.instructions import Broadcast, Reduce
from tiledask.plan.program.program import Program
from tiledask.tile import layers as tile

GRIDS = [(1, 1), (1, 4), (4, 1), (2, 2), (2, 3), (3, 2), (2, 4), (2, 2, 2), (3, 1, 2), (2, 2, 1)]
"""(p, q), and (d, p, q) of 2.5-D."""
SIZES = [(8, 12, 8), (7, 5, 11), (3, 2, 1)]
"""(tokens, in, out): even, primes, fewer than ranks."""


def grid_of(rank):
    if len(rank.shape) == 3:
        return T.RankGrid(rank.group(2), rank.group(1), rank.group(0))
    return T.RankGrid(rank.group(1), rank.group(0))


def both_ways(rank, x, w, b, dy):
    grid = grid_of(rank)
    x, w, dy = (grid.block(*each) for each in (("x", x), ("w", w), ("x", dy)))
    b = None if b is None else grid.block("b", b)
    y, kept = T.summa_linear(grid, x, w, b)
    dx, dw, db = T.summa_linear_grad(grid, dy, kept, w, b)
    return {"y": y, "dx": dx, "dw": dw} | ({} if b is None else {"db": db})


def check(grid, run=run_threads, x=(7, 5), outputs=11, bias=True):
    """What one device finds; the ranks whose calls and bytes are planned."""
    x, w, b, dy = draw(x, (x[-1], outputs), (outputs,), (*x[:-1], outputs))
    b = b if bias else None
    y, kept = tile.linear(x, w, b)
    expected = dict(zip(("dx", "dw", "db"), tile.linear_grad(dy, kept, w, b), strict=True))
    done = run(both_ways, grid, x, w, b, dy)
    for name, value in (expected | {"y": y}).items():
        if value is not None:
            assert_close(T.whole_of([result[name] for result in done.results]), value, name)
    assert not len(done.records.mismatches)
    return done


@pytest.mark.long
@pytest.mark.parametrize("grid", GRIDS)
def test_as_on_one_device(grid):
    for tokens, inputs, outputs in SIZES:
        done = check(grid, x=(tokens, inputs), outputs=outputs)
        planned = plan.summa_linear(tokens, inputs, outputs, grid, bias=True)
        for way in ("forward", "backward"):
            calls, mine = getattr(planned, way), done.records.where(f"summa_linear/{way}")
            sent, received = plan.bytes_by_place(calls, grid, 8)
            totals = mine.totals("rank")
            for rank in range(prod(grid)):
                total = totals.get(rank)
                counted = (total.calls, total.sent, total.received) if total else (0, 0, 0)
                number = sum(rank in call.members for call in calls)
                assert counted == (number, sent[rank], received[rank])


def test_batches_and_no_bias():
    """x [b, s, in], its batch over the rows of the grid."""
    check((2, 2), x=(3, 4, 5), outputs=7, bias=False)


def programs(rank, x, w, b, dy):
    """What its grid has bound, where the layer was called twice."""
    for _ in range(2):
        both_ways(rank, x, w, b, dy)
    return [layer.program for layer in grid_of(rank).bound.values()]


def program_on(grid):
    tokens, inputs, outputs = 7, 5, 11
    whole = draw((tokens, inputs), (inputs, outputs), (outputs,), (tokens, outputs))
    done = run_threads(programs, grid, *whole)
    ((program,), *others) = done.results
    assert all(each == [program] for each in others)
    return program, done.records, plan.summa_linear(tokens, inputs, outputs, grid, bias=True)


@pytest.mark.long
@pytest.mark.few(4)
@pytest.mark.parametrize("grid", [grid for grid in GRIDS if prod(grid) > 1])
def test_its_program_is_checked_counted_and_read_back(grid):
    program, records, planned = program_on(grid)
    assert program.check().shape == grid
    assert Program.from_text(program.to_text()).to_text() == program.to_text()
    for rank in range(prod(grid)):
        said = [(c.label.partition("/")[2], *c[1:]) for c in calls(program, rank)]
        mine = records.where(rank=rank)
        assert 2 * said == [(r.label, r.kind, r.sent, r.received, r.messages) for r in mine]
    sent, received = plan.bytes_by_place(planned.calls, grid, 8)
    assert (program.traffic.sent, program.traffic.received) == (sent, received)


def test_its_time_is_that_of_its_collectives():
    """On (1, 2) ranks: forward every panel of x, backward again, and the sum of dx."""
    program, _, planned = program_on((1, 2))
    link = {"latency": 1.0, "bandwidth": 8.0}
    took = [
        max(seconds(c.kind, "direct", even(c.elements, 2), 8, **link, root=c.root))
        for c in planned.calls
    ]
    made = program.timeline(lambda each: 0.0, **link)
    assert made.end.max() == pytest.approx(sum(took))


def told(program, kind, **wrong):
    """``program`` whose first instruction of ``kind`` is another, on all ranks alike."""
    roles, done = [], 0
    for role in program.roles:
        parts = list(role.parts)
        for p, part in enumerate(parts):
            each = list(part.instructions)
            for at in [i for i, one in enumerate(each) if isinstance(one, kind)][:1]:
                each[at], done = replace(each[at], **wrong), done + 1
            parts[p] = replace(part, instructions=tuple(each))
        roles.append(replace(role, parts=tuple(parts)))
    assert done >= len(roles)
    return replace(program, roles=tuple(roles))


@pytest.mark.parametrize("kind", [Broadcast, Reduce])
@pytest.mark.parametrize("root", [1, 2, -1])
def test_another_root_is_refused(kind, root):
    program, *_ = program_on((2, 2))
    with pytest.raises(ProgramError, match="a broadcast is from its root and a reduce to it"):
        told(program, kind, root=root).check()


@pytest.mark.cluster
def test_on_workers(cluster):
    def run(program, shape, *args):
        return td.run_ranks(program, td.Mesh(cluster, shape), *args, timeout=240)

    check((2, 2), run)


@pytest.mark.long
@given(st.integers(1, 30), st.integers(1, 5), st.integers(1, 5))
def test_panels_are_every_column_once_at_its_owners(extent, rows, columns):
    of_x = np.array_split(np.arange(extent), columns)
    of_w = np.array_split(np.arange(extent), rows)
    found = [
        (of_x[p.column][p.of_x].tolist(), of_w[p.row][p.of_w].tolist())
        for p in panels(extent, rows, columns)
    ]
    assert all(a == b for a, b in found)
    assert [i for a, _ in found for i in a] == list(range(extent))
    assert len(found) <= rows + columns - 1


def test_blocks_that_do_not_go_together_are_refused():
    x, w = np.ones((4, 6)), np.ones((6, 4))

    def program(rank):
        grid = grid_of(rank)
        good, weight = grid.block("x", x), grid.block("w", w)
        turned = T.Placed(good.local, good.tiling.replaced(Shard(1), Shard(0)))
        wrong = {
            "takes x as": (turned, weight),
            r"holds \[2, 3\] of x \[4, 6\], got \[4, 6\]": (T.Placed(x, good.tiling), weight),
            r"takes x as \[4, 4\] .* got \[4, 6\]": (good, grid.block("w", x)),
            "takes b as": (good, weight, grid.block("w", w)),
            r"x \[.., in\] and w": (grid.block("b", np.ones(6)), weight),
        }
        for words, operands in wrong.items():
            with pytest.raises(PlacementError, match=words):
                T.summa_linear(grid, *operands)
        _, kept = T.summa_linear(grid, good, weight)
        with pytest.raises(PlacementError, match="takes dy as"):
            T.summa_linear_grad(grid, good, kept, weight)
        return True

    assert all(run_threads(program, (2, 2)).results)
