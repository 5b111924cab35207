"""Questions of memory say what the material's own numbers say, and follow the inputs."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask.lab.questions.planning import sized
from tiledask.plan.inputs.layout import Layout


def values(number, **inputs):
    return td.ask(number, run=False, **inputs).values


def test_200_billion_on_40_gb_by_every_convention():
    told = values(14)
    assert told["fewest"] == {
        "fp16-weights": 10,
        "fp32-weights": 20,
        "fp32-sgd": 40,
        "mixed-adam-16": 80,
        "mixed-adam-18": 90,
    }
    assert told["zero3_degree"] == 80
    assert not told["copies_fit"]
    assert values(14, billions=2)["copies_fit"]


@given(st.floats(0.5, 500), st.sampled_from(["24GB", "40GB", "80GB"]))
@settings(max_examples=20, deadline=None)
def test_copies_never_shrink_and_slices_do(billions, memory):
    told = values(15, billions=billions, memory=memory)
    sizes, whole = told["slice_bytes"], told["copy_bytes"]
    assert sizes[0] == whole
    assert all(a > b for a, b in pairwise(sizes))
    room = td.plan.units.parse_bytes(memory)
    assert (told["fewest_slices"] == 1) == told["copies_fit"] == (whole <= room)


def test_70_billion_on_8_gpus_is_infeasible_and_what_would_do():
    told = values(18)
    assert (told["states_each"], told["fewest_devices"], told["verdict"]) == (140 * 10**9, 14, "no")
    others = told["other_verdicts"]
    assert [others[name] for name in ("bf16-adam", "lora", "141 GB", "192 GB")] == [
        "fits",
        "fits",
        "no",
        "fits",
    ]
    assert values(18, devices=16)["verdict"] == "fits"


def test_b_cannot_start_without_zero_2():
    told = values(24)
    assert [size / 1e9 for size in told["states"]] == [60, 26.25, 20.625, 15]
    assert told["lowest_zero"] == 2
    assert round(told["idle_now"], 4) == round(3 / 7, 4)
    assert values(24, memory="80GB")["lowest_zero"] == 0


@pytest.mark.cluster
def test_workers_refuse_b_as_written_and_hold_it_with_zero_2(cluster):
    rows = {row.quantity: row for row in td.ask(24, cluster=cluster).run.rows}
    ends = [rows[f"B{name}: verdict"].measured for name in (" as written", ", ZeRO-1", ", ZeRO-2")]
    assert ends == ["does not fit", "does not fit", "fits"]


def test_the_hybrids_of_a_memory_bound_run():
    told = values(25)
    sizes = {name: size / 1e9 for name, size in told["states"].items()}
    assert [sizes[f"dp 2 x pp 4{zero}"] for zero in ("", ", ZeRO-1", ", ZeRO-2")] == [120, 75, 67.5]
    assert (sizes["4 stages, fp32 Adam"], sizes["4 stages, fp32 SGD"]) == (120, 60)
    assert told["gradient_alone"] == 0.0
    assert told["gradient_scaled"] == pytest.approx(9.997e-9, rel=1e-4)


def test_one_node_holds_30_billion_at_80_gb_and_not_at_40():
    told = values(16)
    assert told["states_each"] == 60e9
    assert [told["fitting_by_memory"][gb] > 0 for gb in ("24", "40", "48", "80", "141")] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert [8, 1, 1, 0] in told["feasible"]
    assert [1, 1, 8, 0] not in told["feasible"]


def test_without_the_binding_limit_the_answer_is_another():
    told = values(19)
    assert told["binds"] == "memory"
    assert "nothing" in told["best"]
    assert "nothing" not in told["decisions"]["8 x 80 GB"]
    assert values(19, memory="80GB")["binds"] != "memory"


def test_two_clusters_have_a_configuration_in_common_from_two_nodes_on():
    told = values(23)
    assert (told["nodes"], told["state_bytes"]) == (2, 30 * 10**9)
    assert told["fitting"][2] <= min(told["fitting"][:2])
    assert told["A"]["tokens_per_second"] >= told["B"]["tokens_per_second"]
    assert told["A"]["peak"] == told["B"]["peak"] < 40e9


@pytest.mark.parametrize("billions", [0.3, 7, 30, 70, 200, 1000])
def test_a_decoder_has_the_size_that_was_asked_for(billions):
    model = sized.decoder(billions)
    assert model.parameters == pytest.approx(billions * 1e9, rel=2e-3)
    assert model.allows_tp(8)
    assert model.layers % 8 == 0


@given(
    st.sampled_from([7, 30]),
    st.builds(
        Layout,
        dp=st.sampled_from([1, 2, 4]),
        tp=st.sampled_from([1, 2]),
        pp=st.sampled_from([1, 4]),
        zero=st.sampled_from([0, 1, 2, 3]),
    ),
    st.sampled_from(sized.CONVENTIONS),
)
@settings(max_examples=40, deadline=None)
def test_the_working_of_states_comes_to_the_bytes_that_it_says(billions, layout, recipe):
    size, words = sized.states(billions, layout, recipe)
    sum_, _, shown = words.partition(" = ")
    assert eval(sum_.replace(" B x", " *").replace("e9", "")) == pytest.approx(size / 1e9)
    assert shown == td.plan.units.format_bytes(size)
