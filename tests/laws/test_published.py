"""Table 5 of the Zero Bubble paper, worked out again row by row, to its last digit."""

import json
from pathlib import Path

import pytest
from oracles.closed_pipelines import interleaved_makespan

from tiledask.lab.sweep import timeline_of

FILE = Path(__file__).parents[2] / "data" / "published" / "schedule.json"
CASES = [c for c in json.loads(FILE.read_text("utf-8")) if c["id"].startswith("zb_t5_1.5B_p8_m")]


def bubble_rate(row):
    """By simulation; but interleaved rows are the paper's count, a formula: from one chunk to the
    next only the first of each p micro-batches waits for the device at the other end, and a
    simulation, in which every one waits, takes p latencies longer."""
    if row["schedule"] != "1F1B-I":
        return timeline_of(row).span_bubble
    whole = row["T_F"] + row["T_B"] + row["T_W"]
    span = interleaved_makespan(row["p"], row["m"], row["v"], whole, row["T_comm"])
    return 1 - row["m"] * whole / span


def test_every_kind_of_row_is_worked_out_to_its_last_digit():
    names = {case["inputs"]["schedule"] for case in CASES}
    assert names == {"1F1B", "1F1B-I", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p"}
    assert len(CASES) == 13
    for case in CASES:
        assert round(bubble_rate(case["inputs"]), 4) == case["expected"]["bubble_rate"]


def test_times_are_seconds_and_can_be_replaced():
    row = CASES[0]["inputs"]
    with_latency, without = timeline_of(row), timeline_of(row, latency=0.0)
    extra = (2 * 7 * 24 / 8 + 2 * 6) * row["T_comm"] / 1000
    assert with_latency.makespan - without.makespan == pytest.approx(extra)


def test_the_interleaved_rows_are_the_papers_count_which_simulation_exceeds():
    row = next(c["inputs"] for c in CASES if c["inputs"]["schedule"] == "1F1B-I")
    assert timeline_of(row).span_bubble > bubble_rate(row)
