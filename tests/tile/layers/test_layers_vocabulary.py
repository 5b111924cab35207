"""Embedding and cross-entropy: by definition, and with the vocabulary split over devices.

Holds `tiledask.tile.layers.cross_entropy` and `tiledask.tile.layers.embedding`.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.gradients import draw

from tiledask.tile import as_dtype
from tiledask.tile import layers as L
from tiledask.tile.backend import to_numpy
from tiledask.tile.layers.by_name import KERNELS, RankPart

# -- embedding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [(0, 11), (0, 5, 11), (0, 1, 2, 10, 11)])
def test_devices_with_some_rows_add_up(cuts):
    table, tokens = draw((11, 3), seed=1)[0], np.random.default_rng(2).integers(0, 11, (4, 6))
    y, kept = L.embedding(tokens, table, vocabulary=11)
    dy = draw(y.shape, seed=1)[0]
    whole, hot = L.embedding_grad(dy, kept), tokens.ravel() == np.arange(11)[:, None]
    np.testing.assert_array_equal(y, table[tokens])
    np.testing.assert_allclose(whole, hot @ dy.reshape(-1, 3), atol=1e-14)
    parts = [L.embedding(tokens, table[a:b], a) for a, b in itertools.pairwise(cuts)]
    np.testing.assert_array_equal(sum(y for y, _ in parts), y)  # one term is not zero: exact
    grads = [L.embedding_grad(dy, kept) for _, kept in parts]
    np.testing.assert_array_equal(np.concatenate(grads), whole)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_terms_of_a_row_are_added_in_one_order_everywhere(xp, dtype):
    """On a GPU the bits are the host's: atomic additions would come in any order."""
    tokens = np.random.default_rng(4).integers(0, 5, (30, 50))
    dy = draw((30, 50, 300), seed=4)[0].astype(as_dtype(dtype))
    host = L.embedding_grad(dy, L.embedding(tokens, np.zeros((5, 300), dy.dtype))[1])
    _, kept = L.embedding(xp.asarray(tokens), xp.zeros((5, 300), dy.dtype))
    for _ in range(3):
        made = to_numpy(L.embedding_grad(xp.asarray(dy), kept))
        np.testing.assert_array_equal(made.view(np.uint8), host.view(np.uint8))


def test_rows_that_are_not_numbers_stay_where_they_are():
    """Zeros for a token of another device, whatever row 0 holds."""
    table = np.array([[np.nan], [np.inf], [2.0]])
    assert L.embedding(np.array([7, 2]), table)[0].ravel().tolist() == [0.0, 2.0]


def test_unsigned_tokens_do_not_wrap_around():
    tokens = np.array([0, 3], np.uint8)  # 0 - 2 would be row 254
    assert L.embedding(tokens, np.ones((300, 1)), first=2)[0].ravel().tolist() == [0.0, 1.0]


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


def split_loss(logits, targets, cuts, smoothing):
    """(loss, dlogits) of each device that holds classes cuts[i] .. cuts[i + 1]."""
    parts = [RankPart(a, b, logits.shape[-1]) for a, b in itertools.pairwise(cuts)]
    count = L.count_targets(targets, logits.shape[-1], smoothing)
    local = [logits[..., part.here] for part in parts]
    maximum = np.max([KERNELS["largest_logit"](z) for z in local], axis=0)
    sums = sum(
        KERNELS["loss_sums"](z, targets, maximum, classes=part, smoothing=smoothing)
        for z, part in zip(local, parts, strict=True)
    )
    told = [{"classes": part, "count": count, "smoothing": smoothing} for part in parts]
    return [
        (
            KERNELS["loss"](sums, targets, **each),
            KERNELS["logits_grad"](z, targets, maximum, sums, **each),
        )
        for z, each in zip(local, told, strict=True)
    ]


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
