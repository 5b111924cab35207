"""Data parallelism: the big batch's gradient, halves, and orders of summation.

Holds `tiledask.distributed.data_parallel.flat` and `tiledask.distributed.data_parallel.zero`.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import averaging, halves, orders
from oracles.calls import assert_calls, assert_close
from oracles.chains import LAYERS, SIZES, batch, parts
from oracles.gradients import draw

import tiledask as td
from tiledask.distributed.data_parallel import zero
from tiledask.distributed.data_parallel.chain import gradients, initial_weights
from tiledask.distributed.data_parallel.flat import Packing
from tiledask.distributed.ranks.group import Group
from tiledask.distributed.ranks.threads import run_threads
from tiledask.errors import ConfigError, PlacementError
from tiledask.plan.collectives import data_parallel as D
from tiledask.plan.collectives.cost import even

pytestmark = pytest.mark.usefixtures("one_thread")


# -- averaging -------------------------------------------------------------------------------------


def mean_program(rank, weights, x, classes, samples, total, bucket_bytes):
    mine = parts(samples)[rank.index]
    _, grads = gradients(LAYERS, weights, x[mine], classes[mine], max(1, len(mine)))
    flat = {f"{a}.{b}": g for a, each in grads.items() for b, g in each.items()}
    group = rank.group()
    return averaging.average(group, flat, len(mine), total, bucket_bytes=bucket_bytes)


def check_mean(samples, known=True, bucket_bytes=averaging.BUCKET, run=run_threads):
    weights, (x, classes) = initial_weights(LAYERS), batch(sum(samples))
    _, grads = gradients(LAYERS, weights, x, classes)
    total, ranks = sum(samples) if known else None, len(samples)
    done = run(mean_program, ranks, weights, x, classes, samples, total, bucket_bytes)
    for result in done.results:
        for layer, each in grads.items():
            for name, g in each.items():
                assert_close(result[f"{layer}.{name}"], g)
    calls = D.averaging(sum(SIZES.values()), ranks, 8, bucket_bytes, counts_samples=not known)
    assert_calls(done.records, calls, ranks)
    return done


@pytest.mark.parametrize("samples", [(4, 4, 4), (3, 3, 2), (1, 0, 6, 2), (1, 1, 0, 0, 0), (5,)])
@pytest.mark.parametrize("known", [True, False])
def test_the_mean_is_that_of_the_big_batch(samples, known):
    done = check_mean(samples, known)
    assert done.records.barriers == ({None: 2 - known} if len(samples) > 1 else {})


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(sum), st.integers(8, 700))
def test_any_samples_in_any_buckets(samples, bucket_bytes):
    check_mean(tuple(samples), bucket_bytes=bucket_bytes)


def test_fewer_larger_buckets_carry_the_same_bytes():
    sent = {}
    for bucket_bytes in (8 * 9, 8 * 20, averaging.BUCKET):
        done = check_mean((2, 2), bucket_bytes=bucket_bytes)
        totals = done.records.totals("rank")[0]
        sent[totals.calls] = totals.sent
    assert list(sent) == [-(-82 // 9), -(-82 // 20), 1]
    assert set(sent.values()) == {8 * 82}


def test_more_replicas_hold_no_larger_model():
    """What each holds stays the same, what each sends hardly grows: 2(k-1)/k of the gradients."""
    sent = [D.averaging(129_068, k, 4)[0].cost.sent[0] for k in (2, 4, 8, 64)]
    assert sent[1] == 774_408
    assert sent == sorted(sent)
    assert sent[-1] < 2 * 129_068 * 4

    def held(rank):
        return zero.Zero(rank.group(), LAYERS, initial_weights(LAYERS), "fp32-adam").held

    assert run_threads(held, 2).results[0] == run_threads(held, 5).results[0]


def test_statistics_over_a_batch_are_not_means_over_its_parts():
    """The caveat of batch normalisation: each replica divides by its own deviation, and no
    averaging of gradients makes that the deviation of the whole batch."""
    (x,) = draw((8, 3))

    def normalised(x):
        return (x - x.mean(axis=0)) / x.std(axis=0)

    def program(rank):
        mine = x[4 * rank.index :][:4]
        group = rank.group()
        mean = group.all_reduce(mine.sum(axis=0)) / 8
        square = group.all_reduce((mine * mine).sum(axis=0)) / 8
        return normalised(mine), (mine - mean) / np.sqrt(square - mean * mean)

    results = run_threads(program, 2).results
    apart, summed = (np.concatenate([r[i] for r in results]) for i in (0, 1))
    assert np.abs(apart - normalised(x)).max() > 0.1
    assert_close(summed, normalised(x), 1e-14)


def test_no_samples_at_all_are_refused():
    with pytest.raises(ConfigError, match=r"a mean is over 1 sample or more.* got 0 of 0"):
        run_threads(lambda rank: averaging.average(rank.group(), {"w": np.ones(2)}, 0), 2)


def test_a_gradient_that_is_missing_or_unknown_is_refused():
    packing = Packing.of({"w": np.ones((2, 2)), "b": np.ones(2)})
    with pytest.raises(PlacementError, match="of 'b' \\(2,\\) was said, and this is missing"):
        packing.pack({"w": np.ones((2, 2))})
    with pytest.raises(PlacementError, match="of 'c' nothing was said, and this is \\(3,\\)"):
        packing.pack({"w": np.ones((2, 2)), "b": np.ones(2), "c": np.ones(3)})
    with pytest.raises(ConfigError, match="a number of 8 bytes or more, got 4 bytes"):
        D.buckets(10, 8, 4)


def test_a_mean_of_means_is_noticed(monkeypatch):
    """Planted: every rank counts the same, however many samples it has."""
    honest = averaging.average
    monkeypatch.setattr(
        averaging,
        "average",
        lambda group, grads, samples, total, **o: honest(group, grads, 1, group.size, **o),
    )
    check_mean((2, 2))
    with pytest.raises(AssertionError, match="of the largest element"):
        check_mean((3, 3, 2))


def test_a_doubled_all_reduce_is_noticed(monkeypatch):
    """Planted: the sum is summed again, and is n times too large."""
    honest = Group.all_reduce
    monkeypatch.setattr(
        Group, "all_reduce", lambda self, x, **o: honest(self, honest(self, x, **o), **o)
    )
    with pytest.raises(AssertionError):
        check_mean((2, 2))


# -- halves ----------------------------------------------------------------------------------------


def test_65520_is_infinite_and_what_helps():
    assert np.float16(65519.9) == 65504
    found = {o.name: o for o in halves.outcomes([np.float32([65504]), np.float32([16])])}
    assert np.isinf(found["as they are"].mean[0])
    assert found["as they are"].overflows == 1
    for name in ("average first", "wide", "in single", "smaller scale"):
        assert found[name].overflows == 0
        assert abs(found[name].mean[0] / 32760 - 1) < 2**-11
    assert found["in single"].sent == 2 * found["wide"].sent == 2 * found["average first"].sent


def test_dividing_first_loses_what_is_small():
    """2^-24 is the smallest float16; a quarter of it is none."""
    tiny = np.full(3, 2.0**-24, np.float32)
    found = {o.name: o for o in halves.outcomes([tiny] * 4)}
    lost = {name: o.lost for name, o in found.items()}
    assert lost == {
        "as they are": 0,
        "average first": 3,
        "wide": 3,
        "in single": 0,
        "smaller scale": 3,
    }


def test_a_loss_scale_keeps_small_gradients():
    """1e-8 is 0 in float16, and 9.997e-9 if it was scaled by 2^16."""
    assert np.float16(1e-8) == 0
    kept = float(np.float16(np.float32(1e-8) * 2**16)) / 2**16
    assert abs(kept - 9.997e-9) < 1e-12


def test_sums_that_overflow_on_the_way_only():
    """30000 + 30000 + 30000 - 60000 fits; in float16 the way there does not."""
    values = [np.float32([v]) for v in (30000, 30000, 30000, -60000)]

    def program(rank, value, wide):
        return rank.group().all_reduce(value.astype(np.float16), wide=wide).item()

    for wide, expected in ((False, np.inf), (True, 30000)):
        done = run_threads(lambda r, v, w=wide: program(r, v, w), 4, per_rank=values)
        assert done.results == [expected] * 4


@pytest.mark.long
def test_wide_sums_are_closer():
    gradients = [g.astype(np.float32) for g in draw(*[(2000,)] * 8)]
    exact = np.mean(np.asarray(gradients, np.float64), axis=0)
    found = {o.name: np.abs(o.mean - exact).mean() for o in halves.outcomes(gradients)}
    assert found["wide"] < found["average first"]
    assert found["in single"] < found["wide"]


# -- orders ----------------------------------------------------------------------------------------


def test_every_ring_is_among_all_orders():
    partials = [g.astype(np.float32) for g in draw(*[(64,)] * 5)]
    spread = orders.order_spread(partials)
    assert spread.orders == 120
    for algorithm in ("ring", "direct"):  # a tree adds sums to sums
        done = run_threads(
            lambda rank, g, a=algorithm: rank.group().all_reduce(g, algorithm=a),
            5,
            per_rank=partials,
        )
        assert spread.contains(done.results[0])
    ring = run_threads(
        lambda rank, g: rank.group().all_reduce(g, algorithm="ring"), 5, per_rank=partials
    ).results[0]
    chunks = np.split(np.arange(64), np.cumsum(even(64, 5))[:-1])
    for c, at in enumerate(chunks):
        total = np.zeros(len(at), np.float32)
        for i, r in enumerate(orders.ring_order(c, 5)):
            total = partials[r][at] if i == 0 else total + partials[r][at]
        np.testing.assert_array_equal(ring[at], total)


def test_more_replicas_spread_wider():
    """And whole numbers do not at all."""
    partials = [g.astype(np.float16) for g in draw(*[(500,)] * 6)]
    widths = [orders.order_spread(partials[:n]).width for n in (2, 3, 6)]
    assert widths[0] == 0.0
    assert widths[1] < widths[2]
    assert orders.order_spread([np.arange(4.0)] * 5).width == 0.0
    assert int(orders.order_spread(partials[:2]).distinct.max()) == 1
    with pytest.raises(ConfigError, match="got 9; take fewer replicas"):
        orders.order_spread([np.ones(1)] * 9)


def test_too_few_orders_are_noticed(monkeypatch):
    """Planted: only the order of ranks is tried; a ring's result is then outside."""
    monkeypatch.setattr(orders, "permutations", lambda partials: [tuple(partials)])
    with pytest.raises(AssertionError):
        test_every_ring_is_among_all_orders()


# -- a cluster -------------------------------------------------------------------------------------


@pytest.mark.cluster
def test_on_workers(cluster):
    def run(program, ranks, *args):
        return td.run_ranks(program, td.Mesh(cluster, (ranks,)), *args, timeout=60.0)

    check_mean((3, 0, 2, 1), known=False, run=run)
