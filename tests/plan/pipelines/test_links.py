"""How results travel: against a plain reference, by hand, and for every schedule there is.

Holds `tiledask.plan.pipelines.longest_path` and `tiledask.plan.pipelines.schedules`.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiledask.errors import DeadlockError, ScheduleError
from tiledask.plan.pipelines.needs import needs
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.schedules import V_SHAPED, is_looped, schedule, schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.transfers.links import Links


def any_schedule(name: str, devices: int, m: int) -> Schedule:
    if is_looped(name):
        return schedule(name, 2 * devices, m, devices=devices)
    even = name in (*V_SHAPED, "dualpipe")
    return schedule(name, 2 * devices if even else devices, m)


def reference(s: Schedule, seconds, together, hop, carry, blocking) -> dict:
    """(start, end) of every action, by repeating the definition until nothing changes.

    seconds(action), together(forward, backward), hop(action, user, device, device); carry is a
    table of device x device.
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
                for a in block:
                    for b in waits[a]:
                        free = max(free, arrives[b] if b.stage != a.stage else 0.0)
                begin = free
                done = begin + (together(*block) if len(block) == 2 else seconds(block[0]))
                free = done
                for a in block:
                    start[a], end[a], arrives[a] = begin, done, done
                    user = users.get(a)
                    target = d if user is None else s.holder(user.stage, user.microbatch)
                    if target == d:
                        continue
                    if blocking:
                        free += hop(a, user, d, target) + carry[d][target]
                        arrives[a] = free
                    else:
                        gone = max(done, link_free.get((d, target), 0.0)) + carry[d][target]
                        link_free[d, target] = gone
                        arrives[a] = gone + hop(a, user, d, target)
        if (start, arrives) == before:
            return {a: (start[a], end[a]) for a in s}


halves = st.integers(0, 6).map(lambda n: n / 2)  # exact in binary, so that equal means equal


@pytest.mark.few(1)
@pytest.mark.parametrize("part", range(10))
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_equals_the_reference_for_any_schedule_links_and_convention(part, data):
    def lists(values, *shape):
        for n in reversed(shape):
            values = st.lists(values, min_size=n, max_size=n)
        return data.draw(values)

    name = data.draw(st.sampled_from(list(schedules)))
    s = any_schedule(name, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6)))
    p = s.devices
    times = {kind: lists(halves, s.stages, s.microbatches) for kind in "FIW"}
    hops = data.draw(st.sampled_from([None, "boundaries", "links"]))
    latency = lists(halves, p, p) if hops == "links" else 0.5
    if hops == "boundaries":
        latency = lists(halves, s.stages - 1)
    size = data.draw(st.sampled_from([0.0, 1.0, 3.0]))
    rate = lists(st.sampled_from([1.0, 2.0, 4.0]), p, p)
    blocking, longest = data.draw(st.booleans()), sum(np.max(t) for t in times.values())
    both = data.draw(st.none() | st.just(longest))

    def seconds(a: Action) -> float:
        kinds = "IW" if a.kind == "B" else a.kind
        return sum(times[kind][a.stage][a.microbatch] for kind in kinds)

    def together(f: Action, b: Action) -> float:
        return seconds(f) + seconds(b) if both is None else both

    def hop(a: Action, b: Action, source: int, target: int) -> float:
        if hops == "boundaries":
            return latency[min(a.stage, b.stage)]
        return latency[source][target] if hops else 0.5

    carry = [[size / r for r in row] for row in rate]
    t = simulate(
        s,
        times["F"],
        backward_input=times["I"],
        backward_weight=times["W"],
        latency=latency,
        block_bytes=size,
        bandwidth=rate,
        overlapped=both,
        transfers="blocking" if blocking else "overlapped",
    )
    columns = (t.kind, t.stage, t.microbatch, t.start, t.end)
    got = {Action(str(k), int(r), int(i)): (a, b) for k, r, i, a, b in zip(*columns, strict=True)}
    assert got == reference(s, seconds, together, hop, carry, blocking)
    path = t.critical_path
    assert path.compute + path.latency == pytest.approx(t.makespan)
    assert sum(path.by_device.values()) == pytest.approx(path.compute)
    assert len(set(path.actions)) == len(path.actions)
    assert t.lower_bound <= t.makespan + 1e-9
    assert t.origin == "simulated"


TICK = 0.5


def ticking(s: Schedule, seconds, hop: float, paired: bool) -> dict[Action, float]:
    """When each action starts, tick by tick, if a transfer occupies both its ends; {} if all stand.

    A rank is a generator of what it does next: (ticks of work, None), or (0, the messages that it
    is in, of which it waits for all). A message is (who made it, who uses it).
    """
    waits, began = needs(s), {}
    now = 0

    def rank(d):
        order, sent = [*zip(s.actions(d), s.paired[slice(*s.turns[d : d + 2])], strict=True)], []
        while order:
            block = [order.pop(0)]
            block = [a for a, _ in ([*block, order.pop(0)] if block[0][1] else block)]
            come = [(b, a) for a in block for b in waits[a]]
            gap = sent + [m for m in come if s.holder(m[0].stage, m[0].microbatch) != d]
            yield from [(0, gap)] if paired and gap else ((0, [m]) for m in gap)
            began.update(dict.fromkeys(block, now * TICK))
            yield int(sum(map(seconds, block)) / TICK), None
            users = [(b, a) for b in block for a in waits if b in waits[a]]
            sent = [m for m in users if s.holder(m[1].stage, m[1].microbatch) != d]
        yield from [(0, sent)] if paired and sent else ((0, [m]) for m in sent)

    runs = [rank(d) for d in range(s.devices)]
    doing = [next(run, None) for run in runs]
    left: dict = {}  # ticks of each message that is under way
    there: set = set()
    while any(doing):
        moved = True
        while moved:  # all that takes no time
            moved = False
            at = [m for each in doing if each and each[1] for m in each[1]]
            for m in {m for m in at if at.count(m) == 2} - left.keys():
                left[m], moved = int(hop / TICK), True
            there |= {m for m, ticks in left.items() if not ticks}
            for d, each in enumerate(doing):
                if each and (not each[0] if each[1] is None else there.issuperset(each[1])):
                    doing[d], moved = next(runs[d], None), True
        busy = any(each and each[1] is None for each in doing)
        if any(doing) and not busy and there.issuperset(left):
            return {}
        doing = [(e[0] - 1, None) if e and e[1] is None else e for e in doing]
        left = {m: max(0, ticks - 1) for m, ticks in left.items()}
        now += 1
    return began


@pytest.mark.parametrize("paired", [False, True])
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_transfers_of_both_ends_are_those_of_a_clock_that_ticks(paired, data):
    name = data.draw(st.sampled_from(list(schedules)))
    s = any_schedule(name, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5)))
    F, I, W = (data.draw(st.lists(halves, min_size=s.stages, max_size=s.stages)) for _ in "FIW")
    hop, times = data.draw(halves), {"F": F, "I": I, "W": W, "B": np.add(I, W)}
    asked = {"latency": hop, "transfers": "paired" if paired else "rendezvous"}
    wanted = ticking(s, lambda a: times[a.kind][a.stage], hop, paired)
    if not wanted:
        with pytest.raises(
            DeadlockError, match=r"rank (\d) is at .*; rank \d is at .* to rank \1;"
        ):
            simulate(s, F, backward_input=I, backward_weight=W, **asked)
        return
    t = simulate(s, F, backward_input=I, backward_weight=W, **asked)
    columns = (t.kind, t.stage, t.microbatch, t.start)
    got = {Action(str(k), int(r), int(i)): a for k, r, i, a in zip(*columns, strict=True)}
    assert got == wanted
    path = t.critical_path
    assert path.compute + path.latency == pytest.approx(t.makespan)
    assert len(set(path.actions)) == len(path.actions)
    assert t.lower_bound <= t.makespan + 1e-9
    assert t.busy + t.idle == pytest.approx(t.devices * t.makespan)


def test_one_transfer_is_counted_once_where_both_ends_wait():
    """3 s down, 1.5 s across, 3 + 3 s there, 1.5 s back, 3 s: 15 s, for whoever is occupied."""
    pair = schedule("naive", 2, 1)
    for transfers in ("overlapped", "blocking", "rendezvous", "paired"):
        t = simulate(pair, 3.0, 3.0, latency=1.5, transfers=transfers)
        assert (t.makespan, t.lower_bound) == (15.0, 15.0)


def test_1f1b_of_sends_that_wait_is_a_deadlock_and_pairs_are_none():
    s = schedule("1f1b", 2, 2)
    circle = "rank 0 is at 0SEND_F1 to rank 1; rank 1 is at 1SEND_B0 to rank 0; paired ones"
    with pytest.raises(DeadlockError, match=circle):
        simulate(s, 1.0, 2.0, transfers="rendezvous")
    # rank 0: F0 0-1, sends 1-2, F1 2-3, waits until 5 for both (5-6), B0 6-8, B1 from 10
    # rank 1: receives 1-2, F0 2-3, B0 3-5, both ways 5-6, F1 6-7, B1 7-9, sends 9-10
    t = simulate(s, 1.0, 2.0, latency=1.0, transfers="paired")
    assert t.start.tolist() == [0, 2, 6, 10, 2, 3, 6, 7]
    assert t.makespan == 12.0
    # ZB-V's devices would wait in a circle in pairs, too: that is no way out
    with pytest.raises(DeadlockError, match="blocking ones go into a buffer"):
        simulate(schedule("zb-v", 8, 8), transfers="rendezvous")


def test_both_conventions_by_hand():
    s = schedule("gpipe", 2, 2, forward_only=True)
    blocking = simulate(s, 2.0, latency=0.5, transfers="blocking")
    # device 0: F 0-2, sends to 2.5, F 2.5-4.5, sends to 5; device 1 has them at 2.5 and at 5
    assert blocking.start[blocking.device == 0].tolist() == [0, 2.5]
    assert blocking.start[blocking.device == 1].tolist() == [2.5, 5]
    overlapped = simulate(s, 2.0, latency=0.5)
    assert overlapped.start.tolist() == [0, 2, 2.5, 4.5]


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
    assert t.critical_path.latency == 0  # the pair waits for its second half
    assert t.peak_in_flight == (2, 1)
    with pytest.raises(ScheduleError, match=r"overlapped is 1\.5 s and one alone 2 s"):
        simulate(s, 1.0, 2.0, overlapped=1.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"latency": [[0, 1]]}, r"one per boundary .* 1 for 2 stages, or a table of 2 x 2 links"),
        ({"block_bytes": [[1, 2], [3, 4]]}, r"block_bytes .* 1 for 2 stages; got shape \(2, 2\)"),
        ({"block_bytes": -1}, "block_bytes must be finite and 0 or more bytes, got -1"),
        ({"bandwidth": 0}, "bandwidth must be above 0 bytes/s, got 0; .* leave block_bytes out"),
        (
            {"transfers": "free"},
            "transfers are overlapped, blocking, rendezvous or paired, got 'free'",
        ),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ScheduleError, match=message):
        simulate(schedule("1f1b", 2, 2), **options)


def test_links_are_those_between_different_devices():
    links = Links.of(schedule("zb-v", 4, 2), latency=1.0)
    assert links.link.tolist() == [[[1, -1, 2, -1]], [[-1, 2, -1, 1]]]
    assert links.hop.tolist() == [[[1, 0, 1, 0]], [[0, 1, 0, 1]]]
