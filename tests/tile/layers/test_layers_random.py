"""Random numbers by place: the same whatever the split, and random enough for weights."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.tile import layers as L
from tiledask.tile import to_numpy
from tiledask.tile.layers.random import splitmix64


def test_the_generator_is_the_published_one(xp):
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert to_numpy(splitmix64(1234567, xp.arange(4))).tolist() == known
    later = splitmix64(0, xp.arange(10**6, 10**6 + 2))  # from a state that far on
    moved = splitmix64(10**6 * 0x9E3779B97F4A7C15 % 2**64, xp.arange(2))
    assert to_numpy(later).tolist() == to_numpy(moved).tolist()


def taken(whole, part):
    for axis, held in enumerate(part):
        whole = np.take(whole, np.arange(whole.shape[axis])[held], axis=axis)
    return whole


SLICES = st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 3)).map(
    lambda t: slice(min(t[:2]), max(t[:2]), t[2])
)
HELD = st.one_of(SLICES, st.lists(st.integers(0, 4), max_size=4))


@given(
    shape=st.lists(st.integers(5, 7), max_size=3).map(tuple),
    kind=st.sampled_from(["normal", "normal", "zeros", "ones"]),
    dtype=st.sampled_from(["float64", "float32", "bfloat16"]),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_any_split_draws_the_same_parameters(shape, kind, dtype, data):
    part, parameter = [data.draw(HELD) for _ in shape], L.Parameter(shape, kind, 0.3)
    places = np.arange(math.prod(shape)).reshape(shape)
    np.testing.assert_array_equal(L.positions(shape, part), taken(places, part))
    whole = L.draw(parameter, 7, "w", dtype=dtype)
    assert whole.dtype.name == dtype
    assert kind == "normal" or (whole == (kind == "ones")).all()
    np.testing.assert_array_equal(L.draw(parameter, 7, "w", part, dtype), taken(whole, part))


def test_what_is_drawn_in_pieces_is_what_is_drawn_at_once(xp):
    shape = (300, 500)
    at_once = L.normals(L.key(3, "wq"), L.positions(shape)) * 0.5
    single = L.draw(L.Parameter(shape, scale=0.5), 3, "wq", xp=xp.__name__)
    np.testing.assert_array_equal(to_numpy(single), at_once.astype("f4"))


def test_numbers_are_even_unrelated_and_normal():
    """Within six deviations: of chi square with 99 degrees of freedom, correlations, shares."""
    at, n = L.positions((200_000,)), 200_000
    u, z = L.uniforms(L.key("even"), at), L.normals(L.key(4), at)
    assert 0 <= u.min() <= u.max() < 1
    counts = np.histogram(u, 100, (0, 1))[0]
    assert ((counts - n / 100) ** 2 / (n / 100)).sum() < 99 + 6 * math.sqrt(198)
    others = [L.uniforms(L.key("odd"), at), L.uniforms(L.key("even"), at, stream=1)]
    for other in [u[1:], u[784:], *others]:
        pair = np.corrcoef(u[: other.size], other)[0, 1]
        assert abs(pair) < 6 / math.sqrt(other.size)
    for x in (-2.0, -0.5, 0.0, 0.7, 1.5):
        share = (1 + math.erf(x / math.sqrt(2))) / 2
        assert abs((z < x).mean() - share) < 6 * math.sqrt(share * (1 - share) / n)


def test_keys_follow_from_their_words():
    keys = {L.key(*words) for words in [(0,), (1,), ("0",), (0, "wq"), (0, "wk"), ("0wq",), (0, 0)]}
    assert len(keys) == 7
    assert L.key(np.int64(0), "wq") == L.key(0, "wq")


def test_parameters_have_their_deviation_and_differ_by_name_seed_and_prefix():
    values = L.initialise(L.matrix("1", 400, 300, bias=True), 0)
    assert values["w1"].std() == pytest.approx(1 / 20, rel=0.02)
    assert not values["b1"].any()
    kernel = L.conv2d_parameters(3, 8, (2, 5))
    assert (kernel["w"].shape, kernel["w"].scale) == ((8, 3, 2, 5), 30**-0.5)
    w = {"wq": L.Parameter((4, 4)), "wk": L.Parameter((4, 4))}
    drawn = [L.initialise(w, *of) for of in ((0,), (1,), (0, None, "layer 1."))]
    assert len({a.tobytes() for values in drawn for a in values.values()}) == 6
