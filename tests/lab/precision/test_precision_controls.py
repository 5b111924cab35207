"""Losses are compared as long as one device, its weights nudged, stays with itself.

Holds `tiledask.lab.precision.controls`.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiledask as td
from tiledask.distributed.convolution.lenet import LENET
from tiledask.distributed.ranks.program_group import ProgramGroup
from tiledask.errors import CheckpointError, ConfigError
from tiledask.lab.precision import FORMATS, acceptable, compared
from tiledask.tile import layers as L
from tiledask.tile.optimizers import SGD

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT, DIGITS = td.load_text("tales"), td.load_images("digits")
MODEL = td.GPT(TEXT.vocabulary, hidden=12, layers=2, heads=2, sequence=8)


# -- a control -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_every_weight_is_nudged_by_one_rounding(dtype):
    def drawn(nudge, part=None, kind="normal"):
        nudge = L.Nudge(nudge, dtype) if nudge else None
        return L.draw(L.Parameter((40, 30), kind), 0, "w", part, dtype, nudge=nudge)

    plain, one, other = (drawn(n).astype("f8") for n in (0, 1, 2))
    part = (slice(3, 9), [0, 7])
    np.testing.assert_array_equal(drawn(1, part), drawn(1)[part])
    moved = (one - plain) / plain / FORMATS[dtype].roundoff
    assert 0.9 < np.abs(moved).min() <= np.abs(moved).max() < 4.1  # one step of the format, or two
    assert 0.4 < (moved > 0).mean() < 0.6
    assert (one != other).mean() > 0.4
    assert not drawn(1, kind="zeros").any()


@pytest.mark.long
@pytest.mark.parametrize("ranks", [(1, 1, 1), (2, 2, 1)], ids=str)
def test_a_control_is_the_same_training_of_a_text(ranks):
    plain, control = (
        td.train(MODEL, TEXT, ranks, steps=4, batch=5, dtype="float64", nudge=n, progress=False)
        for n in (0, 1)
    )
    np.testing.assert_allclose(control.losses, plain.losses, rtol=1e-12)
    assert any((w != plain.weights[name]).any() for name, w in control.weights.items())


@pytest.mark.long
def test_a_control_is_the_same_training_of_images_and_the_same_control_if_split():
    plain, control, split = (
        td.train_lenet(DIGITS, ways, steps=3, batch=6, dtype="float64", nudge=n)
        for ways, n in (({}, 0), ({}, 1), ({"layerwise": 2, "network": 2}, 1))
    )
    np.testing.assert_allclose(control.losses, plain.losses, rtol=1e-12)
    np.testing.assert_allclose(split.losses, control.losses, rtol=1e-12)
    assert (control.weights["fc1"]["w"] != plain.weights["fc1"]["w"]).any()


@pytest.mark.long
def test_halves_are_nudged_by_their_own_rounding():
    plain, control, single = (
        td.train(MODEL, TEXT, (1, 1, 1), steps=1, batch=5, dtype=dtype, nudge=n, progress=False)
        for dtype, n in (("bfloat16", 0), ("bfloat16", 1), ("float32", 1))
    )
    single_plain = td.train(MODEL, TEXT, (1, 1, 1), steps=1, batch=5, progress=False)
    moved = abs(control.losses[0] - plain.losses[0])
    assert moved > 100 * abs(single.losses[0] - single_plain.losses[0])


@pytest.mark.long
def test_a_nudge_is_part_of_what_a_checkpoint_is_of(tmp_path):
    def go(nudge, steps):
        given = {"steps": steps, "nudge": nudge, "folder": tmp_path}
        return td.train(MODEL, TEXT, (1, 1, 1), batch=2, progress=False, **given)

    go(3, 1)
    with pytest.raises(CheckpointError, match="nudge is 3 there and none here"):
        go(0, 2)
    assert len(go(3, 2).losses) == 1
    with pytest.raises(ConfigError, match="nudge must be a whole number of 0 or more, got -1"):
        go(-1, 3)
    with pytest.raises(ConfigError, match=r"nudge must be a whole number of 0 or more, got 1\.5"):
        td.train_lenet(DIGITS, {}, steps=1, batch=2, nudge=1.5)


# -- the verdict -----------------------------------------------------------------------------------

U = 2.0**-24
ALONE = [2.0] * 8


def off(*roundings):
    """Losses that are so many roundings from ALONE."""
    return [2.0 * (1 - r * U) for r in roundings]


NEAR = off(0, 1, 1, 0, 2, 1, 1, 2)
PARTS_AT_6 = off(0, 1, 0, 1, 2, 1e3, 1e4, 1e5)


@pytest.mark.parametrize(
    ("split", "controls", "grade", "step", "judged", "parted"),
    [
        (NEAR, [], "round-off", 5, 8, None),
        (PARTS_AT_6, [], "fault", 6, 8, None),
        (PARTS_AT_6, [NEAR], "fault", 6, 8, None),  # the training is stable: it is the split
        (PARTS_AT_6, [PARTS_AT_6], "round-off", 2, 3, 6),
        (off(0, 0, 0, 1e3, 0, 0, 0, 0), [NEAR, PARTS_AT_6], "round-off", 1, 3, 6),
        (off(0, 0, 1e3, 0, 0, 0, 0, 0), [NEAR, PARTS_AT_6], "fault", 3, 3, 6),
        (off(0, 0, 8, 0, 0, 0, 0, 0), [NEAR, PARTS_AT_6], "doubtful", 3, 3, 6),
        (off(0, 0, 8, 0, 0, 1e3, 1e2, 1e9), [], "fault", 6, 8, None),  # worse than doubtful
        (NEAR, [off(50, 0, 0, 0, 0, 0, 0, 0)], "doubtful", 1, 0, 1),
        ([2.0, 2.0, float("nan"), *[2.0] * 5], [NEAR], "fault", 3, 8, None),
        (NEAR, [[*NEAR[:5], *[float("nan")] * 3]], "round-off", 2, 3, 6),
    ],
)
def test_verdicts(split, controls, grade, step, judged, parted):
    said = compared(ALONE, split, controls, dtype="float32", layers=1)
    assert (said.grade, said.step, said.judged, said.parted) == (grade, step, judged, parted)
    assert bool(said) == (grade == "round-off")
    assert (said.steps, said.controls) == (8, len(controls))


roundings = st.lists(st.floats(0, 1e3), min_size=8, max_size=8).map(lambda r: off(*r))


@pytest.mark.long
@given(roundings, st.lists(roundings, max_size=3), roundings)
def test_a_control_more_never_judges_more_steps(split, controls, more):
    few, many = (
        compared(ALONE, split, given, dtype="float32", layers=3)
        for given in (controls, [*controls, more])
    )
    assert many.judged <= few.judged
    if many.judged:
        n = many.step
        alike = acceptable(ALONE[n - 1], split[n - 1], n, "float32", layers=3)
        assert many.drift == alike
        if not many:
            assert not few


def test_it_says_what_it_did():
    plain, parted, none, first = (
        repr(compared(ALONE, NEAR, controls, dtype="float32"))
        for controls in ([NEAR], [PARTS_AT_6], [], [off(9, 0, 0, 0, 0, 0, 0, 0)])
    )
    assert plain.startswith("Compared(round-off in all 8 steps: at step 5 1.19e-07 apart, 2.31e-07")
    assert "round-off in the first 3 of 8 steps" in parted
    assert "parts from itself at step 6, and losses say nothing from then on" in parted
    assert none.endswith("; no controls)")
    assert "doubtful in the first 0 of 8 steps" in first


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ((ALONE, NEAR[:7], []), "got 8 of one device, 7 split, no of controls"),
        ((ALONE, NEAR, [NEAR, NEAR[:3]]), "got 8 of one device, 8 split, 8, 3 of controls"),
        (([], [], []), "1 or more; got 0 of one device"),
    ],
)
def test_runs_of_other_lengths_are_refused(runs, words):
    with pytest.raises(ConfigError, match=words):
        compared(*runs, dtype="float32")


# -- trainings that multiply round-off -------------------------------------------------------------

FAST = {"steps": 16, "batch": 16, "rule": SGD(0.1, momentum=0.9)}


@pytest.fixture(scope="module")
def one_device(one_thread):
    """(losses, losses of three controls)."""
    plain, *controls = (td.train_lenet(DIGITS, {}, nudge=n, **FAST).losses for n in range(4))
    return plain, controls


@pytest.mark.few(1)
@pytest.mark.long
@pytest.mark.parametrize("ways", [{"layerwise": 2}, {"data parallel": 2}, {"space": 2}], ids=str)
def test_a_sound_split_is_no_fault_at_a_high_rate(one_device, ways):
    plain, controls = one_device
    split = td.train_lenet(DIGITS, ways, **FAST).losses
    assert compared(plain, split, controls, dtype="float32", layers=len(LENET)).grade != "fault"


@pytest.mark.long
def test_an_unsummed_gradient_is_a_fault_still(one_device, monkeypatch):
    """Planted: each part goes on with its own addend of dx."""
    plain, controls = one_device

    def own_part(group, x, extents, dim, **_):
        assert dim == 1
        start = sum(extents[: group.rank])
        return x[:, start : start + extents[group.rank]]

    monkeypatch.setattr(ProgramGroup, "reduce_scatter", own_part)
    split = td.train_lenet(DIGITS, {"layerwise": 2}, **FAST).losses
    assert compared(plain, split, controls, dtype="float32", layers=len(LENET)).grade == "fault"


@pytest.mark.long
def test_another_training_is_a_fault_still(one_device):
    plain, controls = one_device
    other = td.train_lenet(DIGITS, {}, **FAST | {"rule": SGD(0.1001, momentum=0.9)}).losses
    assert compared(plain, other, controls, dtype="float32", layers=len(LENET)).grade == "fault"
