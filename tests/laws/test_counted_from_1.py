"""Layers, devices and workers count from 1 in all that people read; ranks and orders from 0.

Cuts and answers are drawn; so are schedules, of which figures and pages are looked at.
"""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask.errors import PartitionError, ScheduleError
from tiledask.lab import plots
from tiledask.lab.commands.partition import cut_text
from tiledask.lab.dashboard.pipelines import of_timeline
from tiledask.lab.puzzles.lost_time import busiest, fullest, longest_wait
from tiledask.lab.puzzles.sketch import timeline_text
from tiledask.plan.pipelines.needs import validate

WRONG_BASE = re.compile(r"(?i)\b(device|worker|chunk)s? 0\b")
MIXED = re.compile(r"(?i)\bdevice \d+\b")
"""In a sentence that speaks of an order's text, where stages count from 0."""


def clean(*texts: str) -> None:
    for text in texts:
        assert not WRONG_BASE.search(text), text


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_verdict_on_any_answer_and_any_best_cut(data):
    layers, devices = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    chunks = data.draw(st.sampled_from([1, 1, 2]))
    groups = data.draw(
        st.lists(st.lists(st.integers(1, layers), max_size=4), min_size=1, max_size=9)
        | st.permutations(range(1, layers + 1)).map(lambda order: [order[:3], order[3:]])
        | st.lists(st.integers(0, devices - 1), min_size=layers, max_size=layers)
    )
    room = {"memory": [1] * layers, "capacity": data.draw(st.integers(1, 4))}
    shape = {"costs": [1] * layers, "devices": devices, "chunks": chunks}
    for given_room in ({}, room):
        try:
            verdict = td.judge(groups, **shape, **given_room)
            clean(verdict.reason, verdict.rule, verdict._repr_html_(), cut_text(shape, groups))
        except PartitionError as refused:
            clean(str(refused))
    if layers >= devices * chunks:
        cut = td.partition(layers, devices * chunks, chunks=chunks)
        clean(cut._repr_html_(), f"{cut}")


def words_of(figure) -> list[str]:
    axes = [*figure.axes]
    texts = [t.get_text() for a in axes for t in (*a.texts, a.title, a.xaxis.label, a.yaxis.label)]
    return texts + [t.get_text() for a in axes for t in a.get_yticklabels()]


RUNS = [("1f1b", 3, {}), ("interleaved", 4, {"devices": 2}), ("zb-v", 4, {})]


@pytest.mark.parametrize(("name", "stages", "options"), RUNS)
def test_lanes_of_figures_and_pages(name, stages, options):
    order = td.schedule(name, stages, 4, **options)
    run = td.simulate(order, 1, 2, latency=0.5)
    held = td.memory_over_time(run)
    figures = [plots.gantt(run), plots.memory_timeline({"a": held}), plots.idle_blocks(run)]
    for figure in figures:
        said = words_of(figure)
        clean(*said)
        assert any("device 1" in words for words in said)
    places = {"a": [0, 0, 1], "b": [2, 1, 0]}
    assert {"device 1", "device 3"} <= set(words_of(plots.layers_on_devices(places)))
    page = of_timeline(run, title="a run")
    assert page.rows[0] == "device 1"
    clean(*page.rows, *(box.words for box in page.boxes), run._repr_html_(), f"{held!r}")
    clean(timeline_text(run), run.bound.why, run.critical_path.binds, busiest(run))


def test_what_speaks_of_an_order_speaks_of_ranks():
    order = td.schedule("1f1b", 2, 3)
    run = td.simulate(order, 1, 2)
    said = [longest_wait(run), fullest(order), order._repr_html_()]
    for text in ("0F0,0B0,0F0", "0B0,0F0", "0F0,0B0; 1B0,1F0", "0F0,0B0,0F1,0B1; 1F1,1B1,1F0,1B0"):
        with pytest.raises(ScheduleError) as refused:
            validate(td.Schedule.from_text(text))
        said.append(str(refused.value))
    with pytest.raises(ScheduleError) as refused:
        validate(order, memory_limit=1)
    for words in [*said, str(refused.value)]:
        assert not MIXED.search(words), words
    assert "rank 0" in str(refused.value)
