"""The Timeline against counting half seconds: who is busy, and why the others are idle."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask import Timeline
from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.timeline import CAUSES, SPANS


def spans(kinds, stages=3, microbatches=5):
    """Rows of (device, kind, stage, micro-batch, start, length) in half seconds."""
    most = (stages, microbatches, 40, 12)
    numbers = (st.integers(0, m) for m in most)
    return st.lists(st.tuples(st.integers(0, 3), st.sampled_from(kinds), *numbers), max_size=25)


def timeline(rows, origin="simulated") -> Timeline:
    return Timeline.of(4, [(*r[:4], r[4] / 2, (r[4] + r[5]) / 2) for r in rows], origin)


def ticks(rows, device):
    """The half seconds in which a device computes, counted one by one."""
    mine = (r for r in rows if r[0] == device and r[1] != "T")
    return {tick for *_, start, length in mine for tick in range(start, start + length)}


def check(t: Timeline) -> None:
    """Work and idle pieces cover every device from 0 to the makespan, and never twice."""
    found = t.idle_time
    for d in range(t.devices):
        mine, rows = (t.device == d) & t.computes, found.device == d
        assert (np.diff(found.start[rows]) > 0).all()
        work = [(*span, True) for span in zip(t.start[mine], t.end[mine], strict=True)]
        idle = [(*span, False) for span in zip(found.start[rows], found.end[rows], strict=True)]
        reach = 0.0
        for start, end, works in sorted(work + idle):
            assert start <= reach if works else start == reach < end
            reach = max(reach, end)
        assert reach == t.makespan
    each = np.sum([*found.per_device.values()], axis=0)
    assert each == pytest.approx(t.idle_per_device, abs=1e-9 * t.makespan)


@settings(max_examples=100, deadline=None)
@given(spans(SPANS), st.sampled_from(["measured", "simulated"]))
def test_busy_and_idle_by_counting(rows, origin):
    t = timeline(rows, origin)
    check(t)
    assert t.busy_per_device == tuple(len(ticks(rows, d)) / 2 for d in range(4))
    compute = [r for r in rows if r[1] != "T"]
    ends = [0, *(r[4] + r[5] for r in compute)]
    assert t.makespan == (max(ends) - min((r[4] for r in compute), default=0)) / 2
    assert t.busy + t.idle == 4 * t.makespan
    assert sum(t.idle_per_device) == t.idle
    assert t.utilisation + t.bubble_fraction == pytest.approx(int(t.makespan > 0))
    assert len(t) == len(rows)


def why_idle(rows, devices=4):
    """(device, half second) -> cause, one by one from the words.

    While something is still to come: waiting for others until its turn's results are made, then
    transfer while a block of them travels, else overhead.
    """
    compute = [r for r in rows if r[1] != "T"]
    zero = min((r[4] for r in compute), default=0)
    end = max((r[4] + r[5] for r in compute), default=0)
    made = {("F" if k == "F" else "B", s, i): a + n for _, k, s, i, a, n in compute if k != "W"}
    found = {}
    for d in range(devices):
        mine = sorted((r for r in compute if r[0] == d), key=lambda r: (r[4], r[4] + r[5]))
        for tick in set(range(zero, end)) - ticks(rows, d):
            at = next((n for n, r in enumerate(mine) if r[4] > tick), None)
            if at is None:
                found[d, tick - zero] = "draining"
                continue
            block = mine[at : at + 1]
            if block[0][1] == "F" and block[0][5] > 0:  # and a backward at once
                block += [
                    r for r in mine[at + 1 : at + 2] if r[4:] == block[0][4:] and r[1] in "BI"
                ]
            wanted, sides = [], set()
            for _, kind, s, i, _, _ in block:
                sides.add(({"F": s - 1, "B": s + 1, "I": s + 1, "W": None}[kind], i))
                of_backward = [("F", s, i), ("B", s + 1, i)]
                wanted += {"F": [("F", s - 1, i)], "W": [("B", s, i)]}.get(kind, of_backward)
            travels = [r for r in rows if r[:2] == (d, "T") and r[2:4] in sides]
            if any(made.get(w, tick) > tick for w in wanted):
                found[d, tick - zero] = "dependency" if at else "warm-up"
            elif any(r[4] <= tick < r[4] + r[5] for r in travels):
                found[d, tick - zero] = "transfer"
            else:
                found[d, tick - zero] = "overhead"
    return found


def once_each(rows):
    """Without a second span of the same result, which a schedule never has."""
    first = {}
    for n, row in enumerate(rows):
        key = (n,) if row[1] == "T" else (row[1] if row[1] in "FW" else "B", *row[2:4])
        first.setdefault(key, row)
    return [*first.values()]


@pytest.mark.few(1)
@pytest.mark.parametrize("part", range(5))
@settings(max_examples=100, deadline=None)
@given(spans("FBIWTT", 2, 2).map(once_each))
def test_every_idle_half_second_has_the_cause_that_the_words_say(part, rows):
    found = timeline(rows, "measured").idle_time
    pieces = zip(found.device, found.code, 2 * found.start, 2 * found.end, strict=True)
    seen = {(d, n): [*CAUSES][c] for d, c, a, b in pieces for n in range(int(a), int(b))}
    assert seen == why_idle(rows)


def test_two_ways_of_one_block_count_once_and_another_blocks_excuses_nobody():
    ways = [(1, "T", 0, 0, 0.5, 2.0), (1, "T", 0, 0, 1.5, 2.5), (1, "T", 0, 0, 1.0, 1.25)]
    # of micro-batch 1, a gradient from behind, to another device
    ways += [(1, "T", 0, 1, 2.5, 3.0), (1, "T", 2, 0, 2.5, 3.0), (0, "T", 0, 0, 2.5, 3.0)]
    t = Timeline.of(2, [(0, "F", 0, 0, 0, 1.0), *ways, (1, "F", 1, 0, 3.0, 4.0)], "measured")
    assert (t.idle_time.total["transfer"], t.idle_time.total["overhead"]) == (1.5, 0.5)
    assert t.idle_time.overhead.tolist() == [0, 0.5]
    assert t.overhead_per_action == 0.25


def test_the_two_shares_and_the_papers_rate_are_three_numbers():
    rows = [(0, "F", 0, 0, 0.0, 1.0), (1, "F", 1, 0, 1.0, 2.0), (1, "B", 1, 0, 2.0, 4.0)]
    t = Timeline.of(2, [*rows, (0, "B", 0, 0, 4.0, 6.0)])
    assert (t.bubble_fraction, t.bubble_overhead, t.span_bubble) == (0.5, 1.0, 0.5)
    late = Timeline.of(2, [(0, "F", 0, 0, 0.0, 4.0), (1, "F", 1, 0, 2.0, 6.0)])
    assert (late.bubble_fraction, late.span_bubble) == (pytest.approx(1 / 3), 0)


@pytest.mark.parametrize(("device", "end"), [(2, 1.0), (-1, 1.0), (0, -0.5)])
def test_impossible_spans_are_refused(device, end):
    with pytest.raises(ScheduleError, match=r"on rank .* of 2, from"):
        Timeline.of(2, [(device, "F", 0, 0, 0.0, end)])
