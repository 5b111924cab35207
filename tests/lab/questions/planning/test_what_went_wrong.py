"""Faults are put in and named; effects are told apart; what is sent is what is counted."""

from collections import Counter

import pytest

import tiledask as td
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.planning.on_call import TRAININGS, pipelines
from tiledask.lab.questions.planning.scaled import shrunk
from tiledask.lab.questions.planning.scaling import syncs
from tiledask.plan.inputs.layout import Layout


def values(number, **inputs):
    return td.ask(number, run=False, **inputs).values


def test_the_confusion_matrix_of_pipelines_is_diagonal():
    found = Counter(
        (faulty.cause, td.diagnose(faulty.simulated()).cause)
        for devices in (3, 4, 8)
        for m in (8, 16, 32)
        for faulty in pipelines(devices, m).values()
    )
    assert found == {(cause, cause): 9 for cause, _ in found}
    assert len(found) == 4


@pytest.mark.parametrize(
    ("polled", "cause"),
    [([24, 24, 24, 96], "imbalance"), ([25] * 4, "one at a time"), ([73] * 4, "ramp")],
)
def test_how_busy_devices_are_says_why_they_idle(polled, cause):
    told = values(17, polled=polled)
    assert told["cause"] == told["ranked"][0][0] == cause
    assert told["busy"] == [each / 100 for each in polled]


@pytest.mark.few(2)
@pytest.mark.parametrize("fault", TRAININGS)
def test_a_training_names_the_fault_that_was_put_in(fault):
    told = values(17, fault=fault)
    assert told["cause"] == TRAININGS[fault][0]
    assert told["ranked"][0][0] == told["cause"]


def test_the_postmortem_holds_for_10_to_16_billion_with_zero_1():
    told = values(21)
    assert (told["least_billions"], told["zero_needed"]) == (10, 1)
    assert [round(most, 2) for most in told["most_billions"]] == [10, 16, 17.78, 20]
    busy = {m: values(21, microbatches=m)["busy"] for m in (1, 8, 16, 32)}
    assert {m: round(share, 2) for m, share in busy.items()} == {
        1: 0.25,
        8: 0.73,
        16: 0.84,
        32: 0.91,
    }


def test_twice_the_replicas_send_7_percent_more():
    told = values(22)
    assert [sent / 1e9 for sent in told["ring_bytes"]] == [26.25, 28.125]
    assert told["replica_bytes"] == 120 * 10**9
    each = told["efficiency"]
    assert (
        each["replicas x 2, the same global batch"] < 0.9 < each["replicas x 2, the same work each"]
    )
    assert each["micro-batches x 2"] > 1
    further = values(22, slower=8)["efficiency"]
    assert (
        further["replicas x 2, links 8 times slower"] < each["replicas x 2, links 2 times slower"]
    )


def test_slow_links_are_what_a_plan_for_several_nodes_scales_by():
    fast, slow = values(20), values(20, between=1e9)
    assert fast["efficiency"] > 0.9
    assert slow["efficiency"] < fast["efficiency"]
    assert fast["efficiency_by_formula"] == pytest.approx(fast["efficiency"], abs=0.05)


def test_what_is_sent_grows_with_what_is_split():
    model = sized.decoder(13)
    sent = {each.name: each.bytes for each in syncs(model, Layout(dp=4, tp=2, pp=2), 13)}
    assert sent["dp"] == 2 * 3 / 4 * 2 * 13e9 / 4
    assert sent["tp"] == 4 * 20 * 2048 * model.hidden * 2
    assert sent["pp"] == 2 * 2048 * model.hidden * 2 / 2
    assert syncs(model, Layout(), 13) == []
    again = syncs(model, Layout(tp=2, pp=2, recompute="full"), 13)[0]
    assert again.bytes == sent["tp"] * 6 / 4


@pytest.mark.parametrize(
    ("layout", "small"),
    [
        (Layout(dp=4, tp=2, pp=4), (2, 1, 2)),
        (Layout(tp=8), (1, 4, 1)),
        (Layout(dp=2, pp=8), (2, 1, 2)),
        (Layout(), (1, 1, 1)),
    ],
)
def test_what_was_split_stays_split_on_four_workers(layout, small):
    assert shrunk(layout) == small
