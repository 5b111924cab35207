"""Embedding and cross-entropy: by definition, and with the vocabulary split over devices.

Holds `tiledask.tile.layers.cross_entropy` and `tiledask.tile.layers.embedding`.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.gradients import assert_transpose, draw

from tiledask.errors import KernelError
from tiledask.tile import as_dtype
from tiledask.tile import layers as L

# -- embedding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [(0, 11), (0, 5, 11), (0, 1, 2, 10, 11)])
def test_devices_with_some_rows_add_up(cuts):
    table, tokens = draw((11, 3), seed=1)[0], np.random.default_rng(2).integers(0, 11, (4, 6))
    y, kept = L.embedding(tokens, table, vocabulary=11)
    dy = draw(y.shape, seed=1)[0]
    whole = L.embedding_grad(dy, kept)
    for place in np.ndindex(tokens.shape):
        np.testing.assert_array_equal(y[place], table[tokens[place]])
    for row in range(11):
        expected = dy[tokens == row].sum(axis=0)
        np.testing.assert_allclose(whole[row], expected, atol=1e-14)
    parts = [L.embedding(tokens, table[a:b], a) for a, b in itertools.pairwise(cuts)]
    np.testing.assert_array_equal(sum(y for y, _ in parts), y)  # one term is not zero: exact
    grads = [L.embedding_grad(dy, kept) for _, kept in parts]
    np.testing.assert_array_equal(np.concatenate(grads), whole)


def test_embedding_backward_is_the_transpose():
    tokens = np.array([[0, 5, 3], [3, 3, 9]])
    table, dy = draw((4, 2), (2, 3, 2))
    _, kept = L.embedding(tokens, table, first=2)
    assert_transpose(
        lambda t: L.embedding(tokens, t, 2)[0], lambda d: L.embedding_grad(d, kept), table, dy
    )


def test_rows_that_are_not_numbers_stay_where_they_are():
    """Zeros for a token of another device, whatever row 0 holds."""
    table = np.array([[np.nan], [np.inf], [2.0]])
    assert L.embedding(np.array([7, 2]), table)[0].ravel().tolist() == [0.0, 2.0]


def test_unsigned_tokens_do_not_wrap_around():
    tokens = np.array([0, 3], np.uint8)  # 0 - 2 would be row 254
    assert L.embedding(tokens, np.ones((300, 1)), first=2)[0].ravel().tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (np.array([[3, 8], [9, 1]]), r"tokens are 0 .. 7, got 8 \(2 of 4 are outside\)"),
        (np.array([-1]), r"tokens are 0 .. 7, got -1"),
        (np.array([1.0]), "tokens are integers, got float64"),
    ],
)
def test_embedding_errors(tokens, message):
    with pytest.raises(KernelError, match=message):
        L.embedding(tokens, np.ones((4, 2)), vocabulary=8)


# -- cross-entropy ---------------------------------------------------------------------------------


def by_definition(logits, targets, smoothing, ignore, count=None):
    """-sum of q log p over classes, Python's floats; q is smoothed as Szegedy et al. write it."""
    classes, losses = logits.shape[-1], []
    for z, y in zip(logits.reshape(-1, classes), targets.ravel(), strict=True):
        if y == ignore:
            continue
        total = math.fsum(math.exp(c) for c in z)
        q = [(1 - smoothing) * (c == y) + smoothing / classes for c in range(classes)]
        losses.append(-math.fsum(w * (c - math.log(total)) for w, c in zip(q, z, strict=True)))
    return math.fsum(losses) / (len(losses) if count is None else count)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("count", [None, 1, 64])
def test_cross_entropy_by_definition(smoothing, count):
    logits, targets = draw((3, 4, 7))[0], np.random.default_rng(2).integers(0, 7, (3, 4))
    targets[1, 2] = targets[0, 0] = -100
    loss, _ = L.cross_entropy(logits, targets, smoothing, count=count)
    expected = by_definition(logits, targets, smoothing, -100, count)
    assert float(loss) == pytest.approx(expected, rel=1e-13)


def test_even_logits_lose_log_v_whatever_the_smoothing():
    for smoothing in (0.0, 0.1):
        loss, _ = L.cross_entropy(np.full((2, 50_257), 3.0), np.array([0, 50_256]), smoothing)
        assert float(loss) == pytest.approx(math.log(50_257), rel=1e-12)


def test_the_other_smoothing_is_ours_of_a_larger_one():
    """e/(V-1) for each other class, 1 - e for the target: smoothing = e V/(V-1) here."""
    z, y, v, e = draw((1, 6), seed=1)[0], 2, 6, 0.1
    log_p = z[0] - math.log(np.exp(z[0]).sum())
    theirs = -(1 - e) * log_p[y] - e / (v - 1) * (log_p.sum() - log_p[y])
    loss, _ = L.cross_entropy(z, np.array([y]), smoothing=e * v / (v - 1))
    assert float(loss) == pytest.approx(theirs, rel=1e-13)
    assert float(L.cross_entropy(z, np.array([y]), e)[0]) != pytest.approx(theirs, rel=1e-4)


@pytest.mark.long
@given(
    vocabulary=st.integers(1, 13),
    tokens=st.integers(1, 5),
    smoothing=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 99),
    data=st.data(),
)
@settings(max_examples=80, deadline=None)
def test_devices_with_some_classes_get_the_loss_of_one(vocabulary, tokens, smoothing, seed, data):
    rng = np.random.default_rng(seed)
    logits = 30 * rng.standard_normal((tokens, vocabulary))
    targets = rng.integers(0, vocabulary, tokens)
    if tokens > 1:
        targets[rng.integers(0, tokens)] = -100
    inner = data.draw(st.sets(st.integers(1, max(1, vocabulary - 1)), max_size=4))
    cuts = sorted({0, vocabulary, *(c for c in inner if c < vocabulary)})
    loss, kept = L.cross_entropy(logits, targets, smoothing)
    parts = split_loss(logits, targets, cuts, smoothing)
    for found, _ in parts:
        assert float(found) == pytest.approx(float(loss), rel=1e-12, abs=1e-12)
    joined = np.concatenate([grad for _, grad in parts], axis=-1)
    np.testing.assert_allclose(joined, L.cross_entropy_grad(1.0, kept), atol=1e-14)
    assert not joined[targets == -100].any()


def split_loss(logits, targets, cuts, smoothing, vocabulary=None):
    """(loss, dlogits) of each device that holds classes cuts[i] .. cuts[i + 1]."""
    spans = [(a, b) for a, b in itertools.pairwise(cuts)]
    rule = L.LossRule(vocabulary or logits.shape[-1], smoothing)
    count = L.count_targets(targets, L.LossRule(logits.shape[-1]))
    local = [logits[..., a:b] for a, b in spans]
    maximum = np.max([L.local_maximum(z) for z in local], axis=0)
    sums = sum(
        L.local_sums(z, targets, maximum, rule, a) for z, (a, _) in zip(local, spans, strict=True)
    )
    return [
        (
            L.loss_of_sums(sums, targets, rule, count),
            L.logits_grad(1.0, z, targets, maximum, sums[0], rule, count, a),
        )
        for z, (a, _) in zip(local, spans, strict=True)
    ]


@pytest.mark.parametrize("devices", [2, 4])
def test_smoothing_by_the_classes_of_one_device_is_wrong(devices):
    """The planted fault: with V of one device, the loss is another as soon as there are two."""
    logits, targets = 3 * draw((8, 16), seed=1)[0], np.random.default_rng(2).integers(0, 16, 8)
    cuts = range(0, 17, 16 // devices)
    right = by_definition(logits, targets, 0.1, -100)
    assert float(split_loss(logits, targets, cuts, 0.1)[0][0]) == pytest.approx(right, rel=1e-12)
    wrong = float(split_loss(logits, targets, cuts, 0.1, vocabulary=16 // devices)[0][0])
    assert abs(wrong - right) > 0.05


def test_gathered_logits_would_lose_log_t_more():
    """The planted fault: every device passes all columns as if they were its own."""
    logits, targets, t = draw((3, 8), seed=1)[0], np.array([1, 2, 3]), 4
    maximum, rule = L.local_maximum(logits), L.LossRule(8)
    sums = L.local_sums(logits, targets, maximum, rule)
    wrong = np.stack([t * sums[0], sums[1]])  # the target's logit from one, exponentials from all
    excess = L.loss_of_sums(wrong, targets, rule, 3) - L.loss_of_sums(sums, targets, rule, 3)
    assert float(excess) == pytest.approx(math.log(t))


def test_large_logits_do_not_overflow():
    logits = np.array([[1000.0, 999.0], [-1000.0, -3000.0]])
    with np.errstate(all="raise", under="ignore"):
        loss, kept = L.cross_entropy(logits, np.array([0, 0]))
        grad = L.cross_entropy_grad(1.0, kept)
    assert float(loss) == pytest.approx(math.log1p(math.exp(-1)) / 2)
    assert np.isfinite(grad).all()


def test_a_class_of_minus_infinity_is_never_chosen():
    logits = np.array([[0.0, -np.inf, 0.0]])
    loss, kept = L.cross_entropy(logits, np.array([0]))
    assert float(loss) == pytest.approx(math.log(2))
    assert L.cross_entropy_grad(1.0, kept).tolist() == [[-0.5, 0.0, 0.5]]


def test_micro_batches_with_the_count_of_the_batch_add_up():
    logits, targets = draw((6, 5), seed=1)[0], np.array([0, -100, 1, -100, -100, 4])
    loss, kept = L.cross_entropy(logits, targets, 0.1)
    parts = [
        L.cross_entropy(logits[at], targets[at], 0.1, count=3)
        for at in (slice(2), slice(2, 3), slice(3, 5), slice(5, 6))
    ]
    assert float(sum(p for p, _ in parts)) == pytest.approx(float(loss), rel=1e-14)
    joined = np.concatenate([L.cross_entropy_grad(1.0, kept) for _, kept in parts])
    np.testing.assert_allclose(joined, L.cross_entropy_grad(1.0, kept), atol=1e-15)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_loss_of_halves_is_float32(dtype):
    logits = np.zeros((4, 50_257), as_dtype(dtype))
    loss, kept = L.cross_entropy(logits, np.arange(4))
    assert loss.dtype == np.float32
    assert float(loss) == pytest.approx(math.log(50_257), rel=1e-6)
    grad = L.cross_entropy_grad(1.0, kept)
    assert grad.dtype.name == dtype
    if dtype == "float16":  # 1/(4 V) is nothing to float16, and something with a loss scale
        scaled = L.cross_entropy_grad(2.0**16, kept)[0, 9]
        assert float(scaled) / 2**16 == pytest.approx(1 / (4 * 50_257), rel=1e-3)
        assert float(grad[0, 9]) != pytest.approx(1 / (4 * 50_257), rel=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: L.cross_entropy(np.ones((2, 4)), np.array([0, 4])),
            r"targets are 0 .. 3, or -100 .* got 4 \(1 of 2 are outside\)",
        ),
        (lambda: L.cross_entropy(np.ones((2, 4)), np.array([0, 4]), count=64), "got 4"),
        (
            lambda: L.cross_entropy(np.ones((2, 4)), np.array([-100, -100])),
            "a count above 0, got 0; if all targets are ignored",
        ),
        (lambda: L.cross_entropy(np.ones((2, 4)), np.array([0.0, 1.0])), "targets are integers"),
        (
            lambda: L.cross_entropy(np.ones((2, 4)), np.array([1])),
            r"targets must be \[2\] .* got \[1\]",
        ),
        (lambda: L.LossRule(4, smoothing=1.5), "from 0 to 1, got 1.5"),
        (lambda: L.LossRule(0), "1 class or more, got 0"),
        (lambda: L.local_maximum(np.ones((2, 0))), "1 class or more, got none"),
        (
            lambda: L.loss_of_sums(np.ones((2, 3)), np.zeros(3, int), L.LossRule(4, 0.1), 3),
            "smoothing=0.1 needs 3 sums for each token, got 2",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(KernelError, match=message):
        call()
