"""What layers ask of operands, and that halves are summed in float32."""

import numpy as np
import pytest

from tiledask.errors import KernelError
from tiledask.tile import as_dtype
from tiledask.tile import layers as L

HALVES = ["float16", "bfloat16"]


def test_a_device_may_hold_no_token_or_no_column():
    x, w = np.ones((0, 3)), np.ones((3, 2))
    y, kept = L.linear(x, w)
    assert y.shape == (0, 2)
    dx, dw, _ = L.linear_grad(y, kept, w)
    assert dx.shape == (0, 3)
    assert not dw.any()
    weights = {"w_1": np.ones((3, 0)), "w_2": np.ones((0, 3))}
    y, kept = L.mlp(np.ones((2, 3)), weights)
    assert not y.any()
    assert not L.mlp_grad(y, kept, weights)[0].any()


# -- halves are summed in float32 ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES)
def test_long_sums_of_halves(dtype):
    dtype, n = as_dtype(dtype), 5000
    ones = np.ones((n, 1), dtype)
    dw, db = L.linear_grad_weight(ones, ones)
    assert db[0] == dw[0, 0] == np.float32(n).astype(dtype)
    assert L.linear(ones.T, ones)[0][0, 0] == np.float32(n).astype(dtype)
    _, kept = L.rms_norm(ones, np.ones(1, dtype), eps=0.0)
    assert L.rms_norm_grad(ones, kept, np.ones(1, dtype))[1][0] == np.float32(n).astype(dtype)
    _, kept = L.embedding(np.zeros(n, int), ones[:1])
    assert L.embedding_grad(ones, kept)[0, 0] == np.float32(n).astype(dtype)
    p, _ = L.softmax(np.zeros((1, n), dtype))
    assert (p == np.float32(1 / n).astype(dtype)).all()


@pytest.mark.parametrize(("dtype", "n"), [("float16", 2049), ("bfloat16", 257)])
def test_a_bias_is_added_before_the_sum_is_rounded(dtype, n):
    """n rounds to n - 1, and n - 1 + 1 to n - 1 again; n + 1 is a half."""
    ones = np.ones((1, n), as_dtype(dtype))
    assert float(L.linear(ones, ones.T)[0][0, 0]) == n - 1
    assert float(L.linear(ones, ones.T, ones[0, :1])[0][0, 0]) == n + 1


def test_squares_that_float16_cannot_hold():
    x = np.full((2, 4), 300.0, np.float16)  # 300^2 is past 65504
    w = np.ones(4, np.float16)
    np.testing.assert_array_equal(L.rms_norm(x, w)[0], np.ones((2, 4)))
    x[:, ::2] = -300
    np.testing.assert_array_equal(abs(L.layer_norm(x, w)[0]), np.ones((2, 4)))


def test_silu_of_large_values_stays_finite():
    with np.errstate(all="raise", under="ignore"):
        x = np.array([-1e4, -200.0, 0.0, 1e4], np.float32)
        assert L.silu(x)[0].tolist() == [0.0, 0.0, 0.0, 1e4]
        assert L.silu_grad(np.ones_like(x), L.silu(x)[1]).tolist() == [0.0, 0.0, 0.5, 1.0]


X, IMAGE, TOKENS = np.ones((2, 3)), np.ones((1, 2, 4, 5)), np.array([0, 4])
QKV = [np.ones((1, heads, 2, 3)) for heads in (10, 4, 4)]
REFUSED = [
    (lambda: L.linear(X, X.T.astype("f4")), "one element type, .* got x float64, w float32"),
    (lambda: L.relu(np.ones(3, int)), "bfloat16, float32, float64, got x int64"),
    (lambda: L.linear(X, np.ones((4, 1))), r"w must be \[3, o\], got \[4, 1\]"),
    (lambda: L.mlp(X, {"w_1": X}), "w_2 missing"),
    (lambda: L.find_activation("tanh"), "one of relu, gelu, silu, got 'tanh'"),
    (lambda: L.swiglu(X, np.ones((2, 2))), r"up must be \[.*\], got \[2, 2\]"),
    (lambda: L.rms_norm(X, np.ones(2)), r"w must be \[3\], got \[2\]"),
    (lambda: L.attention(*QKV), "kv heads divide query heads, got 4 and 10"),
    (lambda: L.attention(QKV[1], *QKV[1:], kv_of=(0, 4, 1, 2)), "one of the kv heads 0 .. 3"),
    (lambda: L.rotate(np.ones((5, 4)), L.rotary_angles(np.arange(3), 4)), "of 3 tokens"),
    (lambda: L.embedding(TOKENS, X, vocabulary=4), r"0 .. 3, got 4 \(1 of 2"),
    (lambda: L.cross_entropy(np.ones((2, 4)), TOKENS), r"0 .. 3, or -100 .* got 4"),
    (
        lambda: L.conv2d(IMAGE, np.ones((3, 3, 1, 1))),
        "w .3, 3, 1, 1., 2 channels of x and groups=1",
    ),
    (lambda: L.conv2d(IMAGE, np.ones((1, 2, 7, 1)), padding=1), "use 1 more of"),
    (lambda: L.draw(L.Parameter((2, 3)), 0, "w", ([0, 2], slice(3))), "numbers 0 .. 1"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refused_with_the_rule(call, message):
    with pytest.raises(KernelError, match=message):
        call()
