"""How results travel: against a plain reference, by hand, and for every schedule there is.

Holds `tiledask.plan.pipelines.longest_path` and `tiledask.plan.pipelines.schedules`.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.links import Links
from tiledask.plan.pipelines.needs import needs
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.schedules import schedule, schedules
from tiledask.plan.pipelines.simulate import simulate

LOOPED = ("interleaved", "looped-bfs", "interleaved-zb")
EVEN = ("zb-v", "v-half", "v-min", "dualpipev", "dualpipe", "wave")


def any_schedule(name: str, devices: int, m: int) -> Schedule:
    if name in LOOPED:
        return schedule(name, 2 * devices, m, devices=devices)
    if name == "wave":
        return schedule(name, 4 * devices, m, devices=devices)
    return schedule(name, 2 * devices if name in EVEN else devices, m)


def reference(s: Schedule, seconds, together, latency, carry, blocking) -> dict:
    """(start, end) of every action, by repeating the definition until nothing changes.

    seconds(action), together(forward, backward); latency and carry [device][device].
    """
    waits = needs(s)
    users = {b: a for a, before in waits.items() for b in before if b.stage != a.stage}
    blocks = []  # by device: the actions that are done at once
    for order, pairs in zip(s.orders, np.split(s.paired, s.turns[1:-1]), strict=True):
        rest = iter(zip(order, pairs, strict=True))
        blocks.append([(a, next(rest)[0]) if pair else (a,) for a, pair in rest])
    end, arrives = dict.fromkeys(s, 0.0), dict.fromkeys(s, 0.0)
    start = {}
    while True:
        before = dict(start), dict(arrives)
        link_free: dict = {}
        for d, device_blocks in enumerate(blocks):
            free = 0.0
            for block in device_blocks:
                receive = 0.0
                for a in block:
                    for b in waits[a]:
                        free = max(free, arrives[b] if b.stage != a.stage else 0.0)
                        source = s.holder(b.stage, b.microbatch)
                        if blocking and source != d:
                            receive += latency[source][d] + carry[source][d]
                begin = free + receive
                done = begin + (together(*block) if len(block) == 2 else seconds(block[0]))
                free = done
                for a in block:
                    start[a], end[a], arrives[a] = begin, done, done
                    user = users.get(a)
                    target = d if user is None else s.holder(user.stage, user.microbatch)
                    if target == d:
                        continue
                    if blocking:
                        free += latency[d][target] + carry[d][target]
                        arrives[a] = free
                    else:
                        gone = max(done, link_free.get((d, target), 0.0)) + carry[d][target]
                        link_free[d, target] = gone
                        arrives[a] = gone + latency[d][target]
        if (start, arrives) == before:
            return {a: (start[a], end[a]) for a in s}


halves = st.integers(0, 6).map(lambda n: n / 2)  # exact in binary, so that equal means equal


@pytest.mark.long
@pytest.mark.few(1)
@pytest.mark.parametrize("part", range(5))
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_equals_the_reference_for_any_schedule_links_and_convention(part, data):
    draw = data.draw
    name = draw(st.sampled_from(list(schedules)))
    s = any_schedule(name, draw(st.integers(1, 3)), draw(st.integers(1, 6)))
    p, table = s.devices, st.lists(halves, min_size=s.stages, max_size=s.stages)
    F, I, W = draw(table), draw(table), draw(table)
    square = st.lists(st.lists(halves, min_size=p, max_size=p), min_size=p, max_size=p)
    latency, size = draw(square), draw(st.sampled_from([0.0, 1.0, 3.0]))
    rate = draw(
        st.lists(
            st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=p, max_size=p),
            min_size=p,
            max_size=p,
        )
    )
    blocking = draw(st.booleans())
    both = draw(st.none() | st.just(max(F) + max(I) + max(W)))

    def seconds(a: Action) -> float:
        return (
            {"F": F, "I": I, "W": W}[a.kind][a.stage]
            if a.kind != "B"
            else (I[a.stage] + W[a.stage])
        )

    def together(f: Action, b: Action) -> float:
        return seconds(f) + seconds(b) if both is None else both

    carry = [[size / r for r in row] for row in rate]
    expected = reference(s, seconds, together, latency, carry, blocking)
    t = simulate(
        s,
        F,
        backward_input=I,
        backward_weight=W,
        latency=latency,
        block_bytes=size,
        bandwidth=rate,
        overlapped=both,
        transfers="blocking" if blocking else "overlapped",
    )
    columns = (t.kind, t.stage, t.microbatch, t.start, t.end)
    got = {Action(str(k), int(r), int(i)): (a, b) for k, r, i, a, b in zip(*columns, strict=True)}
    assert got == expected
    path = t.critical_path
    assert path.compute + path.latency == pytest.approx(t.makespan)
    assert len(set(path.actions)) == len(path.actions)
    assert t.lower_bound <= t.makespan + 1e-9


@pytest.mark.long
def test_the_compiled_loop_agrees_with_the_plain_one(monkeypatch):
    from tiledask.plan.pipelines import longest_path

    options = {"latency": 0.3, "block_bytes": 3.0, "bandwidth": 4.0}
    cases = [
        (any_schedule(name, 3, 7), transfers)
        for name in ("1f1b", "chimera", "dualpipe", "dualpipev", "zb-v")
        for transfers in ("overlapped", "blocking")
    ]
    monkeypatch.setattr(longest_path, "LARGE", float("inf"))
    plain = [simulate(s, transfers=way, overlapped=4.0, **options) for s, way in cases]
    monkeypatch.setattr(longest_path, "LARGE", 0)
    for (s, way), t in zip(cases, plain, strict=True):
        again = simulate(s, transfers=way, overlapped=4.0, **options)
        assert np.array_equal(again.start, t.start)
        assert np.array_equal(again.end, t.end)


def test_blocks_queue_for_a_link():
    """Forwards of 1 s each, and a link that takes 3 s for each block: it paces the second stage."""
    s = schedule("gpipe", 2, 3, forward_only=True)
    t = simulate(s, 1.0, block_bytes=6e9, bandwidth=2e9, latency=0.5)
    assert t.start[t.device == 1].tolist() == [4.5, 7.5, 10.5]
    free = simulate(s, 1.0, latency=3.5)
    assert free.start[free.device == 1].tolist() == [4.5, 5.5, 6.5]


def test_two_stages_of_a_device_share_its_link_and_two_devices_do_not():
    """In a V both activations and gradients go up from device 1 to device 0."""
    t = simulate(schedule("zb-v", 4, 4), block_bytes=1.0, bandwidth=[[1, 1e9], [0.5, 1]])
    u = simulate(schedule("zb-v", 4, 4), block_bytes=1.0, bandwidth=[[1, 0.5], [1e9, 1]])
    assert t.makespan > simulate(schedule("zb-v", 4, 4), latency=[2, 0, 0]).makespan
    assert t.makespan != u.makespan


def test_both_conventions_by_hand():
    s = schedule("gpipe", 2, 2, forward_only=True)
    blocking = simulate(s, 2.0, latency=0.5, transfers="blocking")
    # device 0: F 0-2, sends to 2.5, F 2.5-4.5; device 1: receives 2.5-3, F 3-5, receives 5-5.5
    assert blocking.start[blocking.device == 0].tolist() == [0, 2.5]
    assert blocking.start[blocking.device == 1].tolist() == [3, 5.5]
    overlapped = simulate(s, 2.0, latency=0.5)
    assert overlapped.start.tolist() == [0, 2, 2.5, 4.5]


@pytest.mark.parametrize("name", schedules)
def test_a_transfer_that_occupies_the_device_is_never_faster(name):
    s = any_schedule(name, 3, 6)
    free, way, blocks = (
        simulate(s, 2.0, 4.0, latency=c, transfers=how)
        for c, how in ((0, "overlapped"), (0.25, "overlapped"), (0.25, "blocking"))
    )
    assert free.makespan <= way.makespan <= blocks.makespan
    assert free.busy == pytest.approx(way.busy) == pytest.approx(blocks.busy)
    assert blocks.lower_bound <= blocks.makespan


def test_layer_wise_puzzle_of_four_devices():
    """8 layers of 4 steps each way on 4 devices, 0.2 to send and 0.2 to receive: 64 + 6 x 0.4."""
    t = simulate(schedule("naive", 4, 1), 8.0, 8.0, latency=0.2, transfers="blocking")
    assert t.makespan == pytest.approx(66.4)


def test_a_pair_waits_for_both_and_takes_its_own_time():
    s = Schedule.from_text("0F0,(0F1;0B0)OVERLAP_F_B,0B1 ; 1F0,1B0,1F1,1B1")
    t = simulate(s, 1.0, 2.0, overlapped=2.5)
    rows = dict(
        zip(
            zip(t.device.tolist(), t.kind, t.microbatch.tolist(), strict=True),
            zip(t.start, t.end, strict=True),
            strict=True,
        )
    )
    assert rows[0, "F", 1] == rows[0, "B", 0] == (4.0, 6.5)
    assert rows[1, "F", 1] == (6.5, 7.5)
    assert simulate(s, 1.0, 2.0).makespan == t.makespan + 0.5
    assert t.busy_per_device == (1 + 2.5 + 2, 6.0)
    assert t.peak_in_flight == (2, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"latency": [[0, 1]]}, r"one per boundary .* 1 for 2 stages, or a table of 2 x 2 links"),
        ({"latency": [[0, np.nan], [1, 0]]}, "latency must be finite and 0 or more seconds"),
        ({"block_bytes": [[1, 2], [3, 4]]}, r"block_bytes .* 1 for 2 stages; got shape \(2, 2\)"),
        ({"block_bytes": -1}, "block_bytes must be finite and 0 or more bytes, got -1"),
        ({"bandwidth": 0}, "bandwidth must be above 0 bytes/s, got 0; .* leave block_bytes out"),
        ({"bandwidth": np.nan}, "bandwidth must be above 0"),
        ({"transfers": "free"}, "transfers are overlapped or blocking, got 'free'"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ScheduleError, match=message):
        simulate(schedule("1f1b", 2, 2), **options)


def test_a_pair_takes_at_least_as_long_as_the_longer_half():
    with pytest.raises(ScheduleError, match=r"overlapped is 1\.5 s and one alone 2 s"):
        simulate(schedule("dualpipev", 4, 4), 1.0, 2.0, overlapped=1.5)


def test_links_are_those_between_different_devices():
    links = Links.of(schedule("zb-v", 4, 2), latency=1.0)
    assert links.link.tolist() == [[[1, -1, 2, -1]], [[-1, 2, -1, 1]]]
    assert links.hop.tolist() == [[[1, 0, 1, 0]], [[0, 1, 0, 1]]]
