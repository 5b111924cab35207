"""Layers, devices and workers count from 1 in what people read; ranks and orders from 0."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask.errors import PartitionError, ScheduleError

WRONG_BASE = re.compile(r"(?i)\b(device|worker|chunk)s? 0\b")
MIXED = re.compile(r"(?i)\bdevice \d+\b")
"""In a sentence about an order's text, where stages count from 0."""


def clean(*texts: str) -> None:
    for text in texts:
        assert not WRONG_BASE.search(text), text


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_verdict_on_any_answer_and_any_best_cut(data):
    layers, devices = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    chunks = data.draw(st.sampled_from([1, 1, 2]))
    groups = data.draw(
        st.lists(st.lists(st.integers(1, layers), max_size=4), min_size=1, max_size=9)
        | st.lists(st.integers(0, devices - 1), min_size=layers, max_size=layers)
    )
    limits = {"memory": [1] * layers, "capacity": data.draw(st.integers(1, 4))}
    for more in ({}, limits):
        try:
            verdict = td.judge(groups, costs=[1] * layers, devices=devices, chunks=chunks, **more)
            clean(verdict.reason, verdict.rule, verdict._repr_html_())
        except PartitionError as refused:
            clean(str(refused))
    if layers >= devices * chunks:
        cut = td.partition(layers, devices * chunks, chunks=chunks)
        clean(cut._repr_html_(), f"{cut}")


@pytest.mark.parametrize(
    ("name", "stages", "options"), [("1f1b", 3, {}), ("interleaved", 4, {"devices": 2})]
)
def test_lanes_of_figures_and_timelines(name, stages, options):
    run = td.simulate(td.schedule(name, stages, 4, **options), 1, 2, latency=0.5)
    for figure in (td.plots.gantt(run), td.plots.memory_timeline({"a": td.memory_over_time(run)})):
        texts = [(*a.texts, a.title, a.yaxis.label, *a.get_yticklabels()) for a in figure.axes]
        said = [text.get_text() for each in texts for text in each]
        clean(*said)
        assert any("device 1" in words for words in said)
    clean(run._repr_html_(), run.bound.why, run.critical_path.binds)


def test_what_speaks_of_an_order_speaks_of_ranks():
    said = [td.schedule("1f1b", 2, 3)._repr_html_()]
    for text in ("0F0,0B0,0F0", "0B0,0F0", "0F0,0B0; 1B0,1F0", "0F0,0B0,0F1,0B1; 1F1,1B1,1F0,1B0"):
        with pytest.raises(ScheduleError) as refused:
            td.validate(td.Schedule.from_text(text))
        said.append(str(refused.value))
    assert "rank 0" in said[2]
    for words in said:
        assert not MIXED.search(words), words
