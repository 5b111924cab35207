"""Linear layers over ranks: as on one device, to the last digits; collectives as planned.

Holds `tiledask.distributed.tensor.f_g` and `tiledask.distributed.tensor.linear`.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.gradients import draw, inner
from oracles.tensor_cases import RANKS, assert_close, check, spread

from tiledask.distributed import tensor as T
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import PlacementError
from tiledask.plan.collectives import layers as plan
from tiledask.plan.collectives.layers import LayerCalls, Stream
from tiledask.plan.collectives.shards import Shards
from tiledask.plan.products.placement import Replicate, Shard
from tiledask.tile import layers as tile

B, S = 2, 7
WIDTHS = [(8, 16), (5, 7), (3, 2), (1, 1)]
"""(in, out): even, primes, fewer than ranks."""
LIES = [(False, False), (True, False), (True, True)]
"""(sequence, regather)."""


def reference(inputs, outputs):
    x, w, b, dy = draw((B, S, inputs), (inputs, outputs), (outputs,), (B, S, outputs))
    y, kept = tile.linear(x, w, b)
    dx, dw, db = tile.linear_grad(dy, kept, w, b)
    return (x, w, b, dy), {"y": y, "dx": dx, "dw": dw, "db": db}


def by_columns(group, operands, sequence=False, regather=False):
    x, w, b, dy = operands
    w, b = T.shard(group, w, 1), T.shard(group, b, 0)
    y, kept = T.column_linear(group, spread(group, x, sequence), w, b, regather=regather)
    dx, dw, db = T.column_linear_grad(group, T.shard(group, dy, -1), kept, w, b)
    assert (dw.shards, db.shards) == (w.shards, b.shards)
    assert dx.dim == (1 if sequence else None)
    return {"y": y, "dx": dx, "dw": dw, "db": db}


def by_rows(group, operands, sequence=False):
    x, w, b, dy = operands
    w, b = T.shard(group, w, 0), T.replicate(b)
    to = Shard(1) if sequence else Replicate()
    y, kept = T.row_linear(group, T.shard(group, x, -1), w, b, to=to)
    dx, dw, db = T.row_linear_grad(group, spread(group, dy, sequence), kept, w, b)
    assert (y.placement, dw.placement, db.placement) == (to, Shard(0), Replicate())
    return {"y": y, "dx": dx, "dw": dw, "db": db}


@pytest.mark.few(8)
@pytest.mark.parametrize(("sequence", "regather"), LIES)
@pytest.mark.parametrize("t", RANKS)
def test_by_columns(t, sequence, regather):
    for inputs, outputs in WIDTHS:
        operands, expected = reference(inputs, outputs)
        planned = plan.column_linear(Stream(B, S, inputs, t, sequence, regather))
        check(
            t,
            lambda g, operands=operands: by_columns(g, operands, sequence, regather),
            expected,
            planned,
        )


@pytest.mark.few(6)
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("t", RANKS)
def test_by_rows(t, sequence):
    for inputs, outputs in WIDTHS:
        operands, expected = reference(inputs, outputs)
        planned = plan.row_linear(Stream(B, S, outputs, t, sequence))
        check(t, lambda g, operands=operands: by_rows(g, operands, sequence), expected, planned)


def test_one_rank_calls_nothing():
    assert plan.column_linear(Stream(B, S, 4, 1)) == LayerCalls()
    operands, expected = reference(4, 4)
    assert len(check(1, lambda g: by_columns(g, operands), expected, LayerCalls()).records) == 0


@pytest.mark.parametrize("activation", tile.ACTIVATIONS)
def test_columns_then_rows_with_any_activation_between(activation):
    x, w_1, b_1, w_2, b_2, dy = draw((B, S, 5), (5, 11), (11,), (11, 5), (5,), (B, S, 5))
    whole = {"w_1": w_1, "b_1": b_1, "w_2": w_2, "b_2": b_2}
    y, kept = tile.mlp(x, whole, activation)
    dx, grads = tile.mlp_grad(dy, kept, whole)

    def program(group):
        mine = T.shard_weights(group, whole, T.mlp_layout(11, group.size))
        z, k_1 = T.column_linear(group, T.replicate(x), mine["w_1"], mine["b_1"])
        activated, kept = T.activate(z, activation)
        y, k_2 = T.row_linear(group, activated, mine["w_2"], mine["b_2"])
        dbent, dw_2, db_2 = T.row_linear_grad(group, T.replicate(dy), k_2, mine["w_2"], mine["b_2"])
        dz = T.activate_grad(dbent, kept, activation)
        dx, dw_1, db_1 = T.column_linear_grad(group, dz, k_1, mine["w_1"], mine["b_1"])
        return {"y": y, "dx": dx, "w_1": dw_1, "b_1": db_1, "w_2": dw_2, "b_2": db_2}

    for t in (2, 3, 8):
        x_in = Stream(B, S, 5, t)
        check(
            t,
            program,
            {"y": y, "dx": dx, **grads},
            plan.column_linear(x_in).then(plan.row_linear(x_in)),
        )


# -- laws ------------------------------------------------------------------------------------------


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_the_backward_is_the_transpose(t, inputs, outputs, tokens, sequence):
    """<dy, f(x)> = <f_grad(dy), x>, in x and in w, on any number of ranks."""
    x, w, dy = draw((1, tokens, inputs), (inputs, outputs), (1, tokens, outputs), seed=t)

    def program(rank):
        group = rank.group()
        of_columns, of_rows = T.shard(group, w, 1), T.shard(group, w, 0)
        y, kept = T.column_linear(group, spread(group, x, sequence), of_columns)
        dx, dw, _ = T.column_linear_grad(group, T.shard(group, dy, -1), kept, of_columns)
        to = Shard(1) if sequence else Replicate()
        y_2, kept = T.row_linear(group, T.shard(group, x, -1), of_rows, to=to)
        dx_2, dw_2, _ = T.row_linear_grad(group, spread(group, dy, sequence), kept, of_rows)
        return (y, dx, dw), (y_2, dx_2, dw_2)

    results = run_threads(program, t).results
    for way in (0, 1):
        y, dx, dw = (T.whole_of([r[way][i] for r in results]) for i in range(3))
        scale = np.abs(dy).sum() * np.abs(y).max() + 1
        assert abs(inner(dy, y) - inner(dx, x)) <= 1e-13 * scale
        assert abs(inner(dy, y) - inner(dw, w)) <= 1e-13 * scale


def test_shards_sum_to_the_whole_layer():
    """The union of the columns is bit for bit what each alone gives: nothing is added."""
    (x, w, b, _), _ = reference(6, 10)

    def program(rank):
        group = rank.group()
        w_here, b_here = T.shard(group, w, 1), T.shard(group, b, 0)
        return T.column_linear(group, T.replicate(x), w_here, b_here)[0]

    blocks = run_threads(program, 4).results
    assert [block.local.shape[-1] for block in blocks] == [3, 3, 2, 2]
    alone = [tile.linear(x, w[:, a:z], b[a:z])[0] for a, z in ((0, 3), (3, 6), (6, 8), (8, 10))]
    assert np.concatenate(alone, axis=-1).tobytes() == T.whole_of(blocks).tobytes()


def test_uneven_cuts_of_ones_own():
    """Tokens 5, 0, 2 and columns 1, 4, 2 on three ranks."""
    tokens = Shards(7, (((0, 5),), (), ((5, 7),)))
    columns = Shards(7, (((0, 1),), ((1, 5),), ((5, 7),)))
    operands, expected = reference(5, 7)
    x, w, b, dy = operands

    def program(group):
        w_here, b_here = T.shard(group, w, 1, columns), T.shard(group, b, 0, columns)
        y, kept = T.column_linear(group, T.shard(group, x, 1, tokens), w_here, b_here)
        dx, dw, db = T.column_linear_grad(
            group, T.shard(group, dy, -1, columns), kept, w_here, b_here
        )
        assert dx.local.shape[1] == (5, 0, 2)[group.rank]
        return {"y": y, "dx": dx, "dw": dw, "db": db}

    check(3, program, expected, None)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_other_element_types(dtype):
    operands, expected = reference(6, 5)
    cast = [each.astype(dtype) for each in operands]
    done = run_threads(lambda rank: by_rows(rank.group(), cast), 3)
    for name, value in expected.items():
        got = T.whole_of([result[name] for result in done.results])
        assert got.dtype == dtype
        np.testing.assert_allclose(got, value, atol=100 * np.finfo(dtype).eps, rtol=0)


# -- why f and g are conjugate ---------------------------------------------------------------------


@pytest.mark.parametrize("t", [2, 3, 4, 8])
def test_an_all_reduce_both_ways_makes_dw_t_times_too_large(t):
    """dy is the gradient of every partial sum of y; summed over the ranks once more, it is t dy."""
    operands, expected = reference(5, 8)
    x, w, _, dy = operands

    def program(rank, twice):
        group, w_here = rank.group(), T.shard(rank.group(), w, 0)
        _, kept = T.row_linear(group, T.shard(group, x, -1), w_here)
        whole = T.replicate(group.all_reduce(dy)) if twice else T.replicate(dy)
        _, dw, _ = T.row_linear_grad(group, whole, kept, w_here)
        with pytest.raises(PlacementError, match=f"sum is {t} times too large"):
            T.g(group, T.replicate(dy))  # by its placement, the second sum is refused
        return dw

    right, wrong = (T.whole_of(run_threads(program, t, twice).results) for twice in (False, True))
    assert_close(right, expected["dw"])
    assert_close(wrong, t * right)


def test_without_f_dx_is_one_partial_sum():
    """What a column_linear without its all_reduce would hand back."""
    (_, w, _, dy), expected = reference(5, 8)

    def program(rank):
        group = rank.group()
        mine = T.shard(group, w, 1)
        partial = T.shard(group, dy, -1).local @ mine.local.T
        return partial, T.f_grad(group, T.partial(partial)).local

    results = run_threads(program, 4).results
    assert_close(results[0][1], expected["dx"])
    assert np.abs(results[0][0] - expected["dx"]).max() > 0.1
    assert_close(sum(partial for partial, _ in results), expected["dx"])


def test_f_and_g_and_their_other_forms_are_adjoint():
    """<g(y), z> summed over ranks' partial sums, and gathered against scattered."""
    t = 4
    ys, z = draw(*[(3, 5)] * t, seed=1), draw((3, 5), seed=2)[0]

    def program(rank):
        group = rank.group()
        total = T.g(group, T.partial(ys[rank.index]))
        back = T.g_grad(group, T.replicate(z))
        part = T.scattered(group, T.partial(ys[rank.index]), 1)
        all_of = T.gathered(group, T.shard(group, z, 1))
        return total.local, inner(ys[rank.index], back.local), part, all_of.local

    results = run_threads(program, t).results
    total = results[0][0]
    assert inner(total, z) == pytest.approx(sum(r[1] for r in results), rel=1e-13)
    parts = T.whole_of([r[2] for r in results])
    assert inner(parts, z) == pytest.approx(sum(inner(y, results[0][3]) for y in ys), rel=1e-13)
    np.testing.assert_array_equal(results[2][3], z)
