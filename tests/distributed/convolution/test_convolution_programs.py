"""A split convolution that ranks call is a program: checked, and counted as it is recorded.

Holds `tiledask.distributed.tensor.layer_programs` and
`tiledask.plan.program.making.convolution.convolutions`.
"""

import numpy as np
import pytest
from oracles.gradients import draw

from tiledask.distributed.convolution import channels as C
from tiledask.distributed.convolution import space as S
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import PlacementError
from tiledask.plan.collectives.cost import even
from tiledask.plan.program.calls import calls

pytestmark = pytest.mark.usefixtures("one_thread")

X, W, B = draw((2, 6, 11, 5), (10, 6, 3, 3), (10,))
ROWS = even(11, 4)


def by_output(group, wanted):
    mine = C.part(group, W, 0), C.part(group, B, 0)
    y, kept = C.by_output(group, X, *mine, padding=1)
    return C.by_output_grad(group, y, kept, *mine, wanted=wanted)


def by_input(group, wanted):
    mine = C.part(group, W, 1)
    y, kept = C.by_input(group, C.part(group, X, 1), mine, B)
    return C.by_input_grad(group, y, kept, mine, B)


def in_pairs(group, wanted):
    parts = (C.part(group, W, 0), C.part(group, B, 0)), (C.part(group, W.swapaxes(0, 1), 1), None)
    y, kept = C.in_pairs(group, X, *parts, activation="gelu")
    return C.in_pairs_grad(group, y, kept, *parts, activation="gelu", wanted=wanted)


def by_groups(group, wanted):
    x, w = C.part(group, X, 1, groups=3), C.part(group, W[:6, :2], 0, groups=3)
    y, kept = C.by_groups(group, x, w, groups=3)
    return C.by_groups_grad(group, y, kept, w)


def in_rows(group, wanted):
    mine = np.split(X, np.cumsum(ROWS)[:-1], axis=2)[group.rank]
    y, kept = S.conv2d_in_rows(group, mine, W, B, rows=ROWS, padding=1)
    return S.conv2d_in_rows_grad(group, y, kept, W, B, wanted=wanted)


def pooled(group, wanted):
    mine = np.split(X, np.cumsum(ROWS)[:-1], axis=2)[group.rank]
    y, kept = S.max_pool2d_in_rows(group, mine, 3, 1, rows=ROWS)
    return (S.max_pool2d_in_rows_grad(group, y, kept),)


SPLITS = (by_output, by_input, in_pairs, by_groups, in_rows, pooled)


@pytest.mark.parametrize("split", SPLITS, ids=lambda each: each.__name__)
def test_its_program_is_right_and_calls_what_is_recorded(split):
    def program(rank):
        split(rank.group(), True)
        return [layer.program for layer in rank.group().bound.values()]

    done = run_threads(program, 4)
    for rank, (one,) in enumerate(done.results):
        said = [(c.label.partition("/")[2], *c[1:]) for c in calls(one.check(), rank)]
        mine = done.records.where(rank=rank)
        assert said == [(r.label, r.kind, r.sent, r.received, r.messages) for r in mine]


@pytest.mark.parametrize("split", [by_output, in_pairs, in_rows], ids=lambda each: each.__name__)
def test_without_dx_nothing_is_made_or_moves_for_it_and_the_weights_gradients_are_the_same(split):
    def program(rank):
        group = rank.group()
        dx, *with_dx = split(group, True)
        before = len(rank.records)
        none, *without = split(group, False)
        _, shorter = [layer.program for layer in group.bound.values()]
        last = shorter.role(group.rank).parts[1].instructions
        kernels = [each.kernel for each in last if hasattr(each, "kernel")]
        assert dx is not None
        assert none is None
        for one, other in zip(leaves(with_dx), leaves(without), strict=True):
            np.testing.assert_array_equal(one, other)
        return kernels.count("conv2d_grad_input"), [r.kind for r in rank.records[before:]]

    moved = {
        by_output: (0, []),
        in_pairs: (1, ["all_reduce"]),
        in_rows: (0, ["halo_exchange", "all_reduce"]),
    }
    assert run_threads(program, 4).results == [moved[split]] * 4


def leaves(found):
    for each in found:
        if isinstance(each, tuple):
            yield from leaves(each)
        elif each is not None:
            yield each


def test_a_gradient_of_another_shape_is_refused():
    def program(rank):
        group = rank.group()
        mine = C.part(group, W, 0)
        y, kept = C.by_output(group, X, mine)
        C.by_output_grad(group, y[:, :, 1:], kept, mine)

    with pytest.raises(PlacementError, match="dy and y must have the same placement"):
        run_threads(program, 2)
