"""One batch through workers: its order, who waits; what dealing layers round costs."""

import numpy as np
import pytest

import tiledask as td
from tiledask.errors import PlacementError, ScheduleError
from tiledask.lab.questions.pipelines import idle_time
from tiledask.lab.questions.pipelines.one_batch import idle_rows, meanwhile, one_batch
from tiledask.plan.pipelines.timeline import Timeline

TIMETABLE = """
slot          1    2    3    4    5    6    7    8
worker 4      -    -    -  B4↑  B4↓    -    -    -
worker 3      -    -  B3↑    -    -  B3↓    -    -
worker 2      -  B2↑    -    -    -    -  B2↓    -
worker 1    B1↑    -    -    -    -    -    -  B1↓
"""


def worked(number, **inputs):
    return td.ask(number, run=False, **inputs)


# -- 31, 32, 35 ------------------------------------------------------------------------------------


def test_the_timetable_of_a_decoder_of_4_blocks():
    answer = worked(32)
    assert TIMETABLE.strip() in "\n".join(answer.worked.lines)
    assert answer.values["utilisation"] == 0.25
    assert answer.values["flow"] == "B1↑ B2↑ B3↑ B4↑ B4↓ B3↓ B2↓ B1↓"


def test_workers_1_and_4_are_idle_while_3_computes():
    answer = worked(31)
    assert answer.values["states"] == dict.fromkeys(("worker 1", "worker 2", "worker 4"), "idle")
    assert answer.values["flow"].split()[7:9] == ["B8↑", "B8↓"]


def test_gpu_1_and_3_are_idle_while_2_computes():
    answer = worked(35)
    assert answer.values["cut"] == "[1-4][5-8][9-12]"
    assert answer.values["states"] == {"GPU 1": "idle", "GPU 3": "idle"}
    assert answer.values["utilisation"] == pytest.approx(1 / 3)
    assert "33.3 % used, 66.7 % idle" in answer.worked.answer


def test_who_is_busy_meanwhile_is_not_called_idle():
    overlapping = td.simulate("gpipe", 3, 2)
    assert meanwhile(overlapping, 1) == {0: "F1, idle", 2: "F0, idle"}


def test_a_worker_that_is_not_there():
    with pytest.raises(PlacementError, match="workers are 1 to 3, got 4"):
        worked(35, working=4)


# -- 33, 38, 39 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(1, 30))
def test_sums_by_hand_are_the_simulators(seed):
    p = 2 + seed % 5
    zeros = [0.0] * p
    given = {"forward": zeros, "backward": zeros, "transfer": [0.0], "seed": seed}
    F, B, c = idle_time._times(**given)
    t, values = td.simulate("naive", p, 1, forward=F, backward=B, latency=c), worked(39, **given)
    assert values.values["makespan"] == pytest.approx(t.makespan)
    np.testing.assert_allclose(values.values["idle"], t.idle_per_device)
    assert values.values["total idle"] == pytest.approx(t.idle)
    assert values.values["efficiency"] == pytest.approx(t.utilisation)


def test_every_number_of_the_calculation_is_written_out():
    lines = "\n".join(worked(39).worked.lines)
    for part in (
        "0.3 + 0.1 + 0.4 + 0.2 = 1 s",
        "1 + 1.6 + 2 x 0.2 = 3 s",
        "worker 3: busy 0.4 + 0.6 = 1 s, idle 3 - 1 = 2 s",
        "4 x 3 - 2.6 = 9.4 s",
        "2.6 / (4 x 3) = 21.67 %",
    ):
        assert part in lines


def test_times_that_do_not_go_together():
    with pytest.raises(ScheduleError, match="got 3, 4 and 3"):
        worked(39, forward=[1, 1, 1])


def test_from_2_to_4_workers_idle_time_goes_from_T_to_3T():
    found = worked(38).values
    assert found["2 workers"] == {"time": 0.8, "utilisation": 0.5, "idle": 0.8}
    assert found["4 workers"]["time"] == found["2 workers"]["time"]
    assert found["4 workers"]["utilisation"] == 0.25
    assert found["4 workers"]["idle"] == pytest.approx(3 * 0.8)
    T, c, p = 0.8, 0.05, 4
    assert found["4 workers, transfers"]["utilisation"] == pytest.approx(T / (p * (T + 3 * c)))


def test_idle_time_of_all_is_p_minus_1_times_the_batch():
    answer = worked(33)
    assert answer.values["total idle"] == pytest.approx(3 * answer.values["makespan"])


def test_claims_notice_workers_that_wait_too_long_or_work_at_once():
    """Planted: a batch that takes half as long again; one whose second worker does not wait."""

    def failed(*spans):
        seen = Timeline.of(2, [(d, k, d, 0, *at) for d, k, *at in spans], "measured")
        return [row.quantity for row in idle_rows([2.0, 2.0], 4.0, t, seen) if not row_holds(row)]

    def row_holds(row):
        return row.verdict.holds in (None, True)

    t = td.simulate(one_batch([0, 1]), 1.0, 1.0)
    right = (0, "F", 0, 1), (1, "F", 1, 2), (1, "B", 2, 3), (0, "B", 3, 4)
    late = (0, "F", 0, 1), (1, "F", 3, 4), (1, "B", 4, 5), (0, "B", 5, 6)
    at_once = (0, "F", 0, 1), (1, "F", 0, 1), (1, "B", 2, 3), (0, "B", 3, 4)
    assert failed(*right) == []
    assert failed(*late) == ["utilisation"]
    assert failed(*at_once) == ["workers busy beside another"]


# -- 36 --------------------------------------------------------------------------------------------


def test_round_robin_crosses_11_times_where_2_would_do():
    found = worked(36).values
    assert not found["layer-wise"]
    assert (found["crossings"], found["crossings round robin"]) == (2, 11)
    assert found["utilisation"] == pytest.approx(1 / 3)
    assert found["bubble 1F1B"] == pytest.approx(2 / 3)
    assert found["bubble interleaved"] == pytest.approx(2 / 3 / 4)
