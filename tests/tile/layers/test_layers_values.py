"""Layers against their definitions, one number at a time; split over devices; and of halves.

Holds `tiledask.tile.layers.attention`, `tiledask.tile.layers.composites`,
`tiledask.tile.layers.conv`, `tiledask.tile.layers.cross_entropy`,
`tiledask.tile.layers.embedding`, `tiledask.tile.layers.positionwise` and
`tiledask.tile.layers.operands`.
"""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracles.gradients import assert_transpose, draw

from tiledask.errors import KernelError
from tiledask.tile import as_dtype, to_numpy
from tiledask.tile import layers as L
from tiledask.tile.layers.by_name import KERNELS, RankPart

HALVES = ["float16", "bfloat16"]
pytestmark = pytest.mark.usefixtures("one_thread")


# -- attention -------------------------------------------------------------------------------------


def attention_by_loops(q, k, v, kv_of):
    """A query, a key and a column at a time, in Python's floats."""
    b, heads, s, e = q.shape
    y = np.empty((b, heads, s, v.shape[-1]))
    for n, h, i in np.ndindex(b, heads, s):
        keys, g = range(i + 1), kv_of[h]
        weights = [math.exp(math.fsum(q[n, h, i] * k[n, g, j]) / math.sqrt(e)) for j in keys]
        for f in range(v.shape[-1]):
            seen = math.fsum(w * v[n, g, j, f] for w, j in zip(weights, keys, strict=True))
            y[n, h, i, f] = seen / math.fsum(weights)
    return y


def merged(*by_head):
    """[b, heads, s, e] of each -> [b, s, heads e], side by side."""
    return np.concatenate([x.swapaxes(1, 2).reshape(len(x), x.shape[2], -1) for x in by_head], -1)


@given(st.tuples(*map(st.integers, [1] * 5, (2, 5, 3, 5, 3))), st.data())
@settings(max_examples=60, deadline=None)
def test_attention_is_its_definition(extents, data):
    b, heads, kv, s, e = extents
    kv_of = tuple(data.draw(st.lists(st.integers(0, kv - 1), min_size=heads, max_size=heads)))
    q, k, v = draw((b, heads, s, e), (b, kv, s, e), (b, kv, s, e))
    y, _ = L.attention(merged(q, k, v), (heads, kv, e), kv_of)
    expected = merged(attention_by_loops(q, k, v, kv_of))
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)


def test_rotation_is_a_complex_product():
    (x,) = draw((2, 3, 4, 7))
    positions = np.array([0, 3, 1000, 7])
    angles, v = L.rotary_angles(positions, 6, base=100.0, dtype="float64"), x[:, :1]
    y, _ = L.rotate(merged(x, v), angles, (2, 1, 7))
    turn = np.exp(1j * positions[:, None] * 100.0 ** (-np.arange(3) / 3))
    expected = (x[..., :3] + 1j * x[..., 3:6]) * turn
    both = np.concatenate([expected.real, expected.imag, x[..., 6:]], axis=-1)
    np.testing.assert_allclose(y, merged(both, v), rtol=1e-12, atol=1e-12)


def test_angles_of_far_positions_are_right_in_float32():
    found, exact = (L.rotary_angles(np.array([1_000_003]), 128, dtype=of) for of in ("f4", "f8"))
    assert found.sin.dtype == np.float32
    assert abs(found.sin - exact.sin).max() < 1e-7


# -- matrices side by side -------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("name", "fuse", "heads"),
    [
        *(("self_attention", L.fuse_qkv, L.Heads(*of)) for of in ((4, 2, 5), (5, 1, 1))),
        ("swiglu_mlp", L.fuse_gate_up, None),
    ],
)
def test_fused_and_separate_are_one_layer(name, fuse, heads, bias):
    layer, parameters = getattr(L, name), getattr(L, f"{name}_parameters")
    separate, expected = (parameters(7, heads or 11, fused, bias) for fused in (False, True))
    w = dict(zip(separate, draw(*(p.shape for p in separate.values())), strict=True))
    (x,), given = draw((2, 3, 7), seed=1), (heads,) if heads else ()
    fused = fuse(w)
    assert {n: a.shape for n, a in fused.items()} == {n: p.shape for n, p in expected.items()}
    y, y_fused = (layer(x, weights, *given)[0] for weights in (w, fused))
    np.testing.assert_allclose(y_fused, y, rtol=1e-12, atol=1e-13)


# -- norms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 13])
def test_norms_by_definition(width):
    x, w, b = draw((3, width), (width,), (width,))
    rms, layer = L.rms_norm(x, w, eps=0.25)[0], L.layer_norm(x, w, b, eps=0.25)[0]
    for n in range(3):
        mean = math.fsum(x[n]) / width
        root = math.sqrt(math.fsum(x[n] ** 2) / width + 0.25)
        deviation = math.sqrt(math.fsum((x[n] - mean) ** 2) / width + 0.25)
        np.testing.assert_allclose(rms[n], x[n] / root * w, rtol=1e-13)
        expected = (x[n] - mean) / deviation * w + b
        np.testing.assert_allclose(layer[n], expected, rtol=1e-12, atol=1e-14)


# -- convolution and pooling -----------------------------------------------------------------------


def by_loops(x, size, out, stride, padding, dilation, of):
    """[n, out, oh, ow]: ``of`` (output channel, [(channel, row in window, column, element)])."""
    n, c, h, w = x.shape
    extents = [
        (e + sum(p) - (k - 1) * d - 1) // s + 1
        for e, p, k, d, s in zip((h, w), padding, size, dilation, stride, strict=True)
    ]
    y = np.zeros((n, out, *extents))
    for m, k, i, j in np.ndindex(y.shape):
        seen = []
        for q, r, s in np.ndindex(c, *size):
            row = i * stride[0] + r * dilation[0] - padding[0][0]
            column = j * stride[1] + s * dilation[1] - padding[1][0]
            if 0 <= row < h and 0 <= column < w:
                seen.append((q, r, s, x[m, q, row, column]))
        y[m, k, i, j] = of(k, seen)
    return y


PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 2))
GEOMETRY = {
    "image": st.tuples(st.integers(1, 6), st.integers(1, 6)),
    "size": st.tuples(*[st.integers(1, 3)] * 2),
    "stride": PAIRS,
    "padding": st.tuples(*[st.tuples(*[st.integers(0, 2)] * 2)] * 2),
}


@given(counts=st.tuples(*map(st.integers, [1] * 3, (2, 3, 3))), dilation=PAIRS, **GEOMETRY)
@settings(max_examples=60, deadline=None)
def test_convolution_is_its_definition_and_its_backward_the_transpose(
    counts, image, size, stride, padding, dilation
):
    reach = [(k - 1) * d + 1 for k, d in zip(size, dilation, strict=True)]
    assume(all(r <= e + sum(p) for r, e, p in zip(reach, image, padding, strict=True)))
    n, channels, out = counts
    x, w, b = draw((n, channels, *image), (out, channels, *size), (out,))
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    y, saved = L.conv2d(x, w, b, **options)

    def output(k, seen):
        return math.fsum([b[k], *(v * w[k, q, r, s] for q, r, s, v in seen)])

    expected = by_loops(x, size, out, stride, padding, dilation, output)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
    (dy,) = draw(y.shape, seed=1)
    dx, dw, db = L.conv2d_grad(dy, saved, w, b)
    assert_transpose(lambda x: L.conv2d(x, w, **options)[0], lambda _: dx, x, dy)
    assert_transpose(lambda w: L.conv2d(x, w, **options)[0], lambda _: dw, w, dy)
    np.testing.assert_allclose(db, dy.sum((0, 2, 3)), atol=1e-12)


@given(**GEOMETRY)
@settings(max_examples=60, deadline=None)
def test_pooling_is_its_definition(image, size, stride, padding):
    assume(all(max(p) < k <= e + sum(p) for k, e, p in zip(size, image, padding, strict=True)))
    (x,) = draw((2, 2, *image), seed=1)
    mean, saved_mean = L.avg_pool2d(x, size, stride, padding)

    def channel(k, seen):
        return math.fsum(v for q, *_, v in seen if q == k) / math.prod(size)

    expected = by_loops(x, size, 2, stride, padding, (1, 1), channel)
    np.testing.assert_allclose(mean, expected, atol=1e-14)
    (dy,) = draw(mean.shape, seed=1)
    pooled, spread = lambda x: L.avg_pool2d(x, size, stride, padding)[0], L.avg_pool2d_grad
    assert_transpose(pooled, lambda dy: spread(dy, saved_mean), x, dy)


def test_a_device_may_hold_no_token_or_no_channel(xp):
    x, w = xp.ones((0, 3)), xp.ones((3, 2))
    y, saved = L.linear(x, w)
    dx, dw, _ = L.linear_grad(y, saved, w)
    assert (y.shape, dx.shape, dw.any()) == ((0, 2), (0, 3), False)
    weights = {"w_1": xp.ones((3, 0)), "w_2": xp.ones((0, 3))}
    y, saved = L.mlp(xp.ones((2, 3)), weights)
    assert not y.any()
    assert not L.mlp_grad(y, saved, weights)[0].any()
    x, w, b = xp.ones((2, 3, 5, 4)), xp.ones((0, 3, 2, 2)), xp.ones(0)
    y, saved = L.conv2d(x, w, b)
    dx, dw, db = L.conv2d_grad(y, saved, w, b)
    shapes = [each.shape for each in (y, dw, db, dx)]
    assert shapes == [(2, 0, 4, 3), w.shape, (0,), x.shape]
    assert not dx.any()


# -- embedding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_terms_of_a_row_are_added_in_one_order_everywhere(xp, dtype):
    """On a GPU the bits are the host's: atomic additions would come in any order."""
    tokens = np.random.default_rng(4).integers(0, 5, (30, 50))
    dy = draw((30, 50, 300), seed=4)[0].astype(as_dtype(dtype))
    host = L.embedding_grad(dy, L.embedding(tokens, np.zeros((5, 300), dy.dtype))[1])
    _, saved = L.embedding(xp.asarray(tokens), xp.zeros((5, 300), dy.dtype))
    for _ in range(3):
        made = to_numpy(L.embedding_grad(xp.asarray(dy), saved))
        np.testing.assert_array_equal(made.view(np.uint8), host.view(np.uint8))


def test_tokens_of_other_devices_give_zeros():
    """Whatever row 0 holds; and unsigned tokens do not wrap around: 0 - 2 would be row 254."""
    table = np.array([[np.nan], [np.inf], [2.0]])
    assert L.embedding(np.array([7, 2]), table, RankPart(0, 3, 8))[0].ravel().tolist() == [0.0, 2.0]
    tokens = np.array([0, 3], np.uint8)
    part = RankPart(2, 302, 302)
    assert L.embedding(tokens, np.ones((300, 1)), part)[0].ravel().tolist() == [0.0, 1.0]


# -- cross-entropy ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [None, 64])
def test_cross_entropy_by_definition(count):
    """-log p of the target, Python's floats."""
    logits, targets = draw((3, 4, 7))[0], np.random.default_rng(2).integers(0, 7, (3, 4))
    targets[1, 2] = targets[0, 0] = -100
    losses = []
    for z, y in zip(logits.reshape(-1, 7), targets.ravel(), strict=True):
        if y != -100:
            total = math.log(math.fsum(math.exp(c) for c in z))
            losses.append(total - z[y])
    loss, _ = L.cross_entropy(logits, targets, count=count)
    assert float(loss) == pytest.approx(math.fsum(losses) / (count or len(losses)), rel=1e-13)


def test_large_logits_do_not_overflow():
    logits = np.array([[1000.0, 999.0], [-1000.0, -3000.0]])
    with np.errstate(all="raise", under="ignore"):
        loss, saved = L.cross_entropy(logits, np.array([0, 0]))
        grad = L.cross_entropy_grad(1.0, saved)
    assert float(loss) == pytest.approx(math.log1p(math.exp(-1)) / 2)
    assert np.isfinite(grad).all()
    _, saved = L.cross_entropy(np.array([[0.0, -np.inf, 0.0]]), np.array([0]))
    assert L.cross_entropy_grad(1.0, saved).tolist() == [[-0.5, 0.0, 0.5]]


@pytest.mark.parametrize("dtype", HALVES)
def test_a_loss_of_halves_is_float32(dtype):
    logits = np.zeros((4, 50_257), as_dtype(dtype))
    loss, saved = L.cross_entropy(logits, np.arange(4))
    assert loss.dtype == np.float32
    assert float(loss) == pytest.approx(math.log(50_257), rel=1e-6)
    # 1/(4 V) is nothing to float16, and something with a loss scale
    scaled = L.cross_entropy_grad(2.0**16, saved)[0, 9]
    assert (scaled.dtype.name, float(scaled)) == (dtype, pytest.approx(2**14 / 50_257, rel=3e-3))


# -- halves are summed in float32 ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES)
def test_long_sums_of_halves(dtype):
    dtype, n = as_dtype(dtype), 5000
    ones, one = np.ones((n, 1), dtype), np.ones(1, dtype)
    _, of_norm = L.rms_norm(ones, one, eps=0.0)
    _, of_table = L.embedding(np.zeros(n, int), ones[:1])
    sums = [
        *L.linear_grad_weight(ones, ones),
        L.linear(ones.T, ones)[0],
        L.rms_norm_grad(ones, of_norm, one)[1],
        L.embedding_grad(ones, of_table),
    ]
    assert [float(each.item()) for each in sums] == [float(np.float32(n).astype(dtype))] * 5


@pytest.mark.parametrize(("dtype", "n"), [("float16", 2049), ("bfloat16", 257)])
def test_a_bias_is_added_before_the_sum_is_rounded(dtype, n):
    """n rounds to n - 1, and n - 1 + 1 to n - 1 again; n + 1 is a half."""
    ones = np.ones((1, n), as_dtype(dtype))
    assert float(L.linear(ones, ones.T)[0][0, 0]) == n - 1
    assert float(L.linear(ones, ones.T, ones[0, :1])[0][0, 0]) == n + 1


def test_what_halves_cannot_hold_on_the_way(xp):
    x, w = xp.full((2, 4), 300.0, np.float16), xp.ones(4, np.float16)  # 300^2 is past 65504
    assert bool((L.rms_norm(x, w)[0] == 1).all())
    x[:, ::2] = -300
    assert bool((abs(L.layer_norm(x, w)[0]) == 1).all())
    qkv = xp.full((1, 2, 3), 300.0, np.float16)  # and so are scores
    assert bool((L.attention(qkv, (1, 1, 1), (0,))[0] == 300).all())
    with np.errstate(all="raise", under="ignore"):
        ones = np.ones(4, np.float32)
        y, saved = L.swiglu(np.array([-1e4, -200.0, 0.0, 1e4], np.float32), ones)
        assert y.tolist() == [0.0, 0.0, 0.0, 1e4]
        assert L.swiglu_grad(ones, saved)[0].tolist() == [0.0, 0.0, 0.5, 1.0]


# -- refusals --------------------------------------------------------------------------------------

X, IMAGE, TOKENS = np.ones((2, 3)), np.ones((1, 2, 4, 5)), np.array([0, 4])
GATED = {"w_gate": np.ones((3, 4)), "w_up": np.ones((3, 5)), "w_down": np.ones((4, 3))}
REFUSED = [
    (lambda: L.linear(X, X.T.astype("f4")), "one element type, .* got x float64, w float32"),
    (lambda: L.relu(np.ones(3, int)), "'float32', 'float64'., got x int64"),
    (lambda: L.linear(X, np.ones((4, 1))), r"w must be \[3, o\], got \[4, 1\]"),
    (lambda: L.find_activation("tanh"), "one of relu, gelu, got 'tanh'"),
    (lambda: L.mlp(X, {"w_1": X}), "w_2 missing"),
    (lambda: L.mlp(X, {"w_1": X, "w_2": X, "b_3": X}), "b_3 unknown"),
    (lambda: L.swiglu_mlp(X, GATED), "w_up has 4 columns .* got 5"),
    (lambda: L.swiglu(X, np.ones((2, 2))), r"up must be \[.*\], got \[2, 2\]"),
    (lambda: L.rms_norm(X, np.ones(2)), r"w must be \[3\], got \[2\]"),
    (lambda: L.shared_heads(10, 4), "kv heads divide query heads, got 4 and 10"),
    (lambda: L.rotate(X[None], L.rotary_angles(np.arange(3), 4), (1, 0, 3)), "of 3 tokens"),
    (lambda: L.rotary_angles(np.arange(3), 5), "2, 4, ..., got 5"),
    (lambda: L.embedding(TOKENS, X), r"0 .. 1, got 4 \(1 of 2"),
    (lambda: L.embedding(X, X), "tokens are integers, got float64"),
    (lambda: L.cross_entropy(np.ones((2, 4)), TOKENS), r"0 .. 3, or -100 .* got 4"),
    (lambda: L.cross_entropy(X, TOKENS * 0 - 100), "a count above 0, got 0"),
    (lambda: L.conv2d(IMAGE, np.ones((3, 3, 1, 1))), r"w must be \[o, 2, y, x\], got \[3, 3"),
    (lambda: L.conv2d(IMAGE, np.ones((1, 2, 7, 1)), padding=1), "got one of 7 x 1 and an image of"),
    (lambda: L.conv2d(IMAGE, np.ones((1, 2, 1, 1)), stride=0), "stride must be .* 1 or more"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refused_with_the_rule(call, message):
    with pytest.raises(KernelError, match=message):
        call()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_sums_are_rounded_once_and_ties_to_even(dtype, xp):
    rng = np.random.default_rng(5)
    x, y = (rng.integers(-300, 300, 4000).astype(as_dtype(dtype)) for _ in range(2))
    got = KERNELS["add"](xp.asarray(x), xp.asarray(y))
    expected = (x.astype("f4") + y.astype("f4")).astype(x.dtype)
    np.testing.assert_array_equal(to_numpy(got).astype("f4"), expected.astype("f4"))
