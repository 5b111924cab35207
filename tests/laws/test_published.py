"""The table worked out again: each kind of row, and that a wrong one is marked as such."""

import json
from pathlib import Path

import pytest

from tiledask.lab.published import bubble_rate, stage_times, timeline_of, zero_bubble_table

FILE = Path(__file__).parents[2] / "data" / "published" / "schedule.json"
CASES = [c for c in json.loads(FILE.read_text("utf-8")) if c["id"].startswith("zb_t5_1.5B_p8_m")]


@pytest.mark.long
def test_every_kind_of_row_is_worked_out_and_passes():
    table = zero_bubble_table(CASES)
    assert len(table) == len(CASES) == 13
    names = {"1F1B", "1F1B-I", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p"}
    assert {row["schedule"] for row in table} == names
    for row in table:
        assert (row["passes"], row["ours"], row["model"]) == (True, row["printed"], "1.5B")
        assert row["by"] == ("formula" if row["schedule"] == "1F1B-I" else "simulation")


def test_a_rate_that_is_off_by_a_digit_does_not_pass():
    case = CASES[0]
    off = case | {"expected": {"bubble_rate": case["expected"]["bubble_rate"] + 1e-4}}
    assert [row["passes"] for row in zero_bubble_table([case, off])] == [True, False]


def test_times_are_seconds_and_can_be_replaced():
    row = CASES[0]["inputs"]
    assert stage_times(row)["forward"] == pytest.approx(row["T_F"] / 1000)
    with_latency, without = timeline_of(row), timeline_of(row, latency=0.0)
    extra = (2 * 7 * 24 / 8 + 2 * 6) * row["T_comm"] / 1000
    assert with_latency.makespan - without.makespan == pytest.approx(extra)


def test_the_interleaved_rows_are_the_papers_count_which_simulation_exceeds():
    row = next(c["inputs"] for c in CASES if c["inputs"]["schedule"] == "1F1B-I")
    assert timeline_of(row).span_bubble > bubble_rate(row).value
