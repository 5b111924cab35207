"""What cannot be asked, and laws of single questions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask.lab.course import runs, sizes
from tiledask.plan.pipelines.timeline import Timeline


@pytest.mark.parametrize(
    ("number", "inputs", "rule"),
    [
        (1, {"blocking": "3x3"}, "blocking of 3x3 is not one of 4 workers"),
        (1, {"m": 48, "n": 36, "k": 24, "tile": 8, "memory": "1MB"}, "a worker would hold 8"),
        (2, {"memory": "1kB"}, "has room for 0"),
        (4, {"columns": 3, "gpus": 4}, "columns cut over 4 devices is 4 or more, got 3"),
        (5, {"d": 3}, "d cut over 4 devices"),
        (6, {"largest": 1}, "leaves some worker without a row"),
        (6, {"device": "H900"}, "no hardware description is called"),
        (8, {"kernel": "wgmma_ws_persistent"}, "does not run on L4: needs compute capability"),
        (9, {"device": "T4"}, "does not run on a T4: needs compute"),
        (9, {"size": 100}, "size a multiple of 64 x workers"),
        (17, {"polled": [101, 2]}, "2 to 256 percentages"),
        (30, {"hidden": 18}, "take a multiple of 4"),
        (35, {"working": 4}, "workers are 1 to 3, got 4"),
        (39, {"forward": [1, 1, 1]}, "3, one per stage"),
    ],
)
def test_what_cannot_be_is_refused_with_the_rule(number, inputs, rule):
    with pytest.raises(ValueError, match=rule):
        td.ask(number, run=False, **inputs)


def test_claims_notice_workers_that_wait_too_long_or_work_at_once():
    """Planted: a batch that takes half as long again; one whose second worker does not wait."""
    t = td.simulate(runs.one_batch([0, 1]), 1.0, 1.0)

    def failed(*spans):
        seen = Timeline.of(2, [(d, k, d, 0, *at) for d, k, *at in spans], "measured")
        rows = runs.timed_claims([2.0, 2.0], 4.0, t, seen)
        return [row.quantity for row in rows if row.verdict.holds is False]

    right = (0, "F", 0, 1), (1, "F", 1, 2), (1, "B", 2, 3), (0, "B", 3, 4)
    late = (0, "F", 0, 1), (1, "F", 3, 4), (1, "B", 4, 5), (0, "B", 5, 6)
    at_once = (0, "F", 0, 1), (1, "F", 0, 1), (1, "B", 2, 3), (0, "B", 3, 4)
    assert failed(*right) == []
    assert failed(*late) == ["utilisation"]
    assert failed(*at_once) == ["order of the blocks"]


@given(
    st.sampled_from([7, 30]),
    st.builds(
        td.Layout,
        dp=st.sampled_from([1, 2, 4]),
        tp=st.sampled_from([1, 2]),
        pp=st.sampled_from([1, 4]),
        zero=st.sampled_from([0, 1, 2, 3]),
    ),
    st.sampled_from(sizes.CONVENTIONS),
)
@settings(max_examples=40, deadline=None)
def test_the_working_of_states_comes_to_the_bytes_that_it_says(billions, layout, recipe):
    size, words = sizes.states(billions, layout, recipe)
    sum_, _, shown = words.partition(" = ")
    assert eval(sum_.replace(" B x", " *").replace("e9", "")) == pytest.approx(size / 1e9)
    assert shown == td.plan.units.format_bytes(size)


@pytest.mark.parametrize("billions", [0.3, 7, 30, 70, 200, 1000])
def test_a_decoder_has_the_size_that_was_asked_for(billions):
    model = sizes.decoder(billions)
    assert model.parameters == pytest.approx(billions * 1e9, rel=2e-3)
    assert model.allows_tp(8)
    assert model.layers % 8 == 0
