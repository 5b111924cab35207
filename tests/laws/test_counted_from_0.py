"""Devices, workers and chunks count from 0 in what people read, as ranks do; layers from 1."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiledask as td
from tiledask.errors import PartitionError, ScheduleError


def numbers(*texts: str, **there: int) -> set[int]:
    """Those that stand behind a word of ``there``, each less than how many there are of it."""
    words = re.compile(rf"(?i)\b({'|'.join(there)})s? (\d+)\b(?! times)")
    found = {(word.lower(), int(n)) for text in texts for word, n in words.findall(text)}
    assert all(n < there[word] for word, n in found), texts
    return {n for _, n in found}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_verdict_on_any_answer(data):
    layers, devices = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4))
    chunks = data.draw(st.sampled_from([1, 1, 2]))
    there, given = {"device": devices, "chunk": chunks}, {"devices": devices, "chunks": chunks}
    groups = data.draw(
        st.lists(st.lists(st.integers(1, layers), max_size=4), min_size=1, max_size=9)
        | st.lists(st.integers(0, devices - 1), min_size=layers, max_size=layers)
    )
    for more in ({}, {"memory": [1] * layers, "capacity": data.draw(st.integers(1, 4))}):
        try:
            verdict = td.judge(groups, costs=[1] * layers, **given, **more)
            numbers(verdict.reason, verdict.rule, **there)
        except PartitionError as refused:
            numbers(str(refused), **there)


@pytest.mark.parametrize(("stages", "options"), [(1, {}), (3, {}), (4, {"devices": 2})])
def test_lanes_of_figures_and_timelines(stages, options):
    made = td.schedule("interleaved" if options else "1f1b", stages, 4, **options)
    run, every = td.simulate(made, 1, 2, latency=0.5), {*range(made.devices)}
    held = td.plots.memory_timeline({"a": td.memory_over_time(run)})
    for figure in (held, td.plots.gantt(run), td.plots.layers_on_devices({"a": [*every]})):
        said = [a.get_title("left") for a in figure.axes]
        said += [t.get_text() for a in figure.axes for t in (*a.texts, *a.get_yticklabels())]
        assert numbers(*said, device=run.devices) == every
    assert "Device 1 would" in td.judge("1 | 2-4", memory=[1] * 4, capacity=2).reason


def test_what_speaks_of_an_order_speaks_of_ranks():
    said = [repr(td.schedule("1f1b", 2, 3))]
    for text in ("0F0,0B0,0F0", "0B0,0F0", "0F0,0B0; 1B0,1F0", "0F0,0B0,0F1,0B1; 1F1,1B1,1F0,1B0"):
        with pytest.raises(ScheduleError) as refused:
            td.validate(td.Schedule.from_text(text))
        said.append(str(refused.value))
    assert "rank 0" in said[2]
    assert not re.search(r"(?i)\bdevice \d", " ".join(said))
