"""The Timeline: time is conserved, overlaps count once, and edges are quiet."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.timeline import Timeline

NUMBERS = [st.integers(0, most) for most in (3, 3, 5, 40, 12)]
SPANS = st.lists(st.tuples(NUMBERS[0], st.sampled_from("FBIWT"), *NUMBERS[1:]), max_size=25)


def timeline(rows, devices=4) -> Timeline:
    """From rows of (device, kind, stage, micro-batch, start, length) in half seconds."""
    spans = [(d, k, s, i, a / 2, (a + n) / 2) for d, k, s, i, a, n in rows]
    return Timeline.of(devices, spans)


def ticks(rows, device, computes=True):
    """The half seconds in which a device is busy, counted one by one."""
    busy = set()
    for d, kind, _, _, start, length in rows:
        if d == device and (kind != "T") == computes:
            busy |= set(range(start, start + length))
    return busy


@pytest.mark.few(1)
@pytest.mark.parametrize("part", range(5))
@settings(max_examples=60, deadline=None)
@given(SPANS)
def test_busy_and_idle_by_counting_half_seconds(part, rows):
    t = timeline(rows)
    assert t.busy_per_device == tuple(len(ticks(rows, d)) / 2 for d in range(4))
    starts = [r[4] for r in rows if r[1] != "T"]
    ends = [r[4] + r[5] for r in rows if r[1] != "T"]
    assert t.makespan == (max(ends) - min(starts)) / 2 if starts else t.makespan == 0
    assert t.busy + t.idle == 4 * t.makespan
    assert sum(t.idle_per_device) == t.idle
    assert all(idle >= 0 for idle in t.idle_per_device)
    if t.makespan:
        assert t.utilisation + t.bubble_fraction == pytest.approx(1)
    assert len(t) == len(rows)


def parts(t):
    """(true idle, transfer, overhead) of each device."""
    found = t.idle_time.per_device
    each = zip(t.idle_per_device, found["transfer"], found["overhead"], strict=True)
    return [(idle - transfer - overhead, transfer, overhead) for idle, transfer, overhead in each]


def parts_by_ticks(rows, devices=4):
    """(true idle, transfer, overhead) per device in half seconds, tick by tick from the words.

    While the device is idle and something is still to come: true idle until its turn's results
    are made, then transfer while a block of them travels, else overhead.
    """
    compute = [r for r in rows if r[1] != "T"]
    zero = min((r[4] for r in compute), default=0)
    end = max((r[4] + r[5] for r in compute), default=0)
    made = {
        (("F" if r[1] == "F" else "B"), r[2], r[3]): r[4] + r[5] for r in compute if r[1] != "W"
    }
    found = []
    for d in range(devices):
        mine = sorted((r for r in compute if r[0] == d), key=lambda r: (r[4], r[4] + r[5]))
        counts = [0, 0, 0]
        for tick in set(range(zero, end)) - ticks(rows, d):
            coming = next((r for r in mine if r[4] > tick), None)
            if coming is None:
                counts[0] += 1
                continue
            block, after = [coming], mine[mine.index(coming) + 1 :][:1]
            at_once = [r for r in after if r[4:] == coming[4:] and r[1] in "BI" and r[5] > 0]
            block += at_once if coming[1] == "F" else []
            wanted, sides = [], set()
            for _, kind, s, i, _, _ in block:
                sides.add(({"F": s - 1, "B": s + 1, "I": s + 1, "W": None}[kind], i))
                wanted += {"F": [("F", s - 1, i)], "W": [("B", s, i)]}.get(
                    kind, [("F", s, i), ("B", s + 1, i)]
                )
            if any(made.get(w, tick) > tick for w in wanted):
                counts[0] += 1
            elif any(
                r[1] == "T" and r[0] == d and r[2:4] in sides and r[4] <= tick < r[4] + r[5]
                for r in rows
            ):
                counts[1] += 1
            else:
                counts[2] += 1
        found.append(tuple(counts))
    return found


def once_each(rows):
    """Without a second span of the same result, which a schedule never has."""
    seen, kept = set(), []
    for row in rows:
        key = (row[1] if row[1] in "FWT" else "B", *(row if row[1] == "T" else row[2:4]))
        if key not in seen:
            seen.add(key)
            kept.append(row)
    return kept


@pytest.mark.few(1)
@pytest.mark.parametrize("part", range(5))
@settings(max_examples=60, deadline=None)
@given(SPANS.map(once_each))
def test_idle_is_transfer_overhead_and_true_idle_by_counting_half_seconds(part, rows):
    spans = [(d, k, s, i, a / 2, (a + n) / 2) for d, k, s, i, a, n in rows]
    t = Timeline.of(4, spans, "measured")
    assert [tuple(2 * x for x in each) for each in parts(t)] == parts_by_ticks(rows)
    assert t.busy + t.idle == 4 * t.makespan


def test_two_ways_of_one_block_count_once_and_another_blocks_excuses_nobody():
    ways = [(1, "T", 0, 0, 0.5, 2.0), (1, "T", 0, 0, 1.5, 2.5), (1, "T", 0, 0, 1.0, 1.25)]
    # of micro-batch 1, a gradient from behind, to another device
    ways += [(1, "T", 0, 1, 2.5, 3.0), (1, "T", 2, 0, 2.5, 3.0), (0, "T", 0, 0, 2.5, 3.0)]
    t = Timeline.of(2, [(0, "F", 0, 0, 0, 1.0), *ways, (1, "F", 1, 0, 3.0, 4.0)], "measured")
    assert (t.idle_time.total["transfer"], t.idle_time.total["overhead"]) == (1.5, 0.5)
    assert t.idle_time.overhead.tolist() == [0, 0.5]
    assert t.overhead_per_action == 0.25


def test_the_two_shares_and_the_papers_rate_are_three_numbers():
    # device 1 works in the middle of the run, so its own span is shorter than the makespan
    rows = [(0, "F", 0, 0, 0.0, 1.0), (1, "F", 1, 0, 1.0, 2.0), (1, "B", 1, 0, 2.0, 4.0)]
    t = Timeline.of(2, [*rows, (0, "B", 0, 0, 4.0, 6.0)])
    assert (t.bubble_fraction, t.bubble_overhead, t.span_bubble) == (0.5, 1.0, 0.5)
    late = Timeline.of(2, [(0, "F", 0, 0, 0.0, 4.0), (1, "F", 1, 0, 2.0, 6.0)])
    assert late.bubble_fraction == pytest.approx(1 / 3)
    assert late.span_bubble == 0


@pytest.mark.parametrize(("device", "end"), [(2, 1.0), (-1, 1.0), (0, -0.5)])
def test_impossible_spans_are_refused(device, end):
    with pytest.raises(ScheduleError, match=r"on rank .* of 2, from"):
        Timeline.of(2, [(device, "F", 0, 0, 0.0, end)])


def test_a_pair_waits_for_what_either_uses():
    """Device 0 does 0F1 and 0B0 at once: 0F1 could start at 1, 0B0 only when 1B0 is made, at 4."""
    spans = [
        (0, "F", 0, 0, 0.0, 1.0),
        (1, "F", 1, 0, 1.0, 2.0),
        (1, "B", 1, 0, 2.0, 4.0),
        (0, "T", 1, 0, 4.0, 4.5),
        (0, "F", 0, 1, 5.0, 8.0),
        (0, "B", 0, 0, 5.0, 8.0),
    ]
    t = Timeline.of(2, spans, "measured")
    assert t.busy_per_device == (4.0, 3.0)
    assert parts(t) == [(3.0, 0.5, 0.5), (5.0, 0, 0)]
