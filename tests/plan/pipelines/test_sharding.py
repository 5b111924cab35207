"""When weights are gathered and dropped: typed, against a plain rule, refused, timed and weighed.

Holds `tiledask.plan.pipelines.generators.sharding`.
"""

from itertools import product

import numpy as np
import pytest

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines import longest_path
from tiledask.plan.pipelines.footprint import memory_over_time
from tiledask.plan.pipelines.generators.sharding import shard_weights
from tiledask.plan.pipelines.needs import validate
from tiledask.plan.pipelines.schedule import SHARDING, Action, Schedule
from tiledask.plan.pipelines.schedules import V_SHAPED, is_looped, schedule, schedules
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.timeline import Timeline

KEEPS = ("action", "phase", "step", 1, 2, 3)


def made(name, microbatches=4):
    stages = 4 if is_looped(name) or name in V_SHAPED else 2
    options = {"devices": 2} if is_looped(name) else {}
    return schedule(name, stages, microbatches, **options)


SOME = ("gpipe", "1f1b", "zb-h1", "interleaved", "zb-v", "chimera", "dualpipev")
EVERY = [(name, keep) for name, keep in product(SOME, KEEPS)]


def line(text, keep, reduce="step"):
    return shard_weights(Schedule.from_text(text), keep, reduce).to_text().replace(",", " ")


def line_of(text, keep):
    return shard_weights(Schedule.from_text(text), keep)


# -- the orders ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "wanted"),
    [
        ("action", "U F0 R U F1 R U B0 R U B1 G R"),
        ("phase", "U F0 F1 R U B0 B1 G R"),
        ("step", "U F0 F1 B0 B1 G R"),
        (3, "U F0 F1 B0 B1 G R"),  # the example in PyTorch's tests
    ],
)
def test_one_stage(keep, wanted):
    words = {"U": "UNSHARD", "R": "RESHARD", "G": "REDUCE_GRAD"}
    typed = " ".join(f"0{words.get(word, word)}" for word in wanted.split())
    assert line("0F0 0F1 0B0 0B1", keep) == typed
    assert line("0F0 0F1 0B0 0B1", keep, "action") == typed.replace(" 0REDUCE_GRAD", "")


def test_two_stages_of_a_device_one_at_a_time_and_two():
    order = "0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1"
    one = "0UNSHARD 0F0 0F1 0RESHARD 1UNSHARD 1F0 1F1 1B0 1B1 1REDUCE_GRAD 1RESHARD 0UNSHARD 0B0"
    assert line(order, 1) == one + " 0B1 0REDUCE_GRAD 0RESHARD"
    two = "0UNSHARD 1UNSHARD 0F0 0F1 1F0 1F1 1B0 1B1 1REDUCE_GRAD 1RESHARD 0B0 0B1 0REDUCE_GRAD"
    assert line(order, 2) == two + " 0RESHARD"


def test_split_backwards_need_weights_until_their_last_part_and_reduce_behind_it():
    assert line("0F0 0I0 0W0", "phase") == "0UNSHARD 0F0 0RESHARD 0UNSHARD 0I0 0W0 0REDUCE_GRAD " \
        "0RESHARD"  # fmt: skip


def by_the_plain_rule(order, paired, count):
    """PyTorch's: before each action the next stages are looked up anew, to the end of the line."""
    found, there = [], []
    for at, action in enumerate(order):
        if at and paired[at - 1]:
            found.append(action)
            continue
        soon = list(dict.fromkeys(a.stage for a in order[at:]))
        here = {a.stage for a in order[at : at + 1 + paired[at]]}
        soon = soon[: max(count, len(here))]
        for s in [s for s in there if s not in soon]:
            there.remove(s)
            found.append(Action("RESHARD", s))
        for s in [s for s in soon if s not in there]:
            there.append(s)
            found.append(Action("UNSHARD", s))
        found.append(action)
    return [*found, *(Action("RESHARD", s) for s in there)]


@pytest.mark.parametrize(("name", "count"), [*product(schedules, (1, 2, 3))])
def test_the_next_stages_are_there(name, count):
    s = made(name)
    kept = shard_weights(s, count, reduce="action")
    pairs = np.split(s.paired, s.turns[1:-1])
    wanted = [by_the_plain_rule(o, p, count) for o, p in zip(s.orders, pairs, strict=True)]
    assert list(map(list, kept.lines)) == wanted
    assert kept.orders == s.orders
    assert np.array_equal(kept.paired, s.paired)


@pytest.mark.parametrize(("name", "keep"), [*product(schedules, KEEPS)])
def test_every_schedule_takes_every_policy(name, keep):
    """It can run, is read back from its text, and gathers at least once a stage and copy."""
    s = made(name)
    kept = validate(shard_weights(s, keep))
    assert Schedule.from_text(kept.to_text()) == kept != s
    assert shard_weights(kept, keep) == kept
    stages = sum(len({a.stage for a in order}) for order in s.orders)
    gathered, dropped, reduced = (int((kept.sharding.kind == k).sum()) for k in range(3))
    assert gathered == dropped >= stages == reduced
    if keep == "step":
        assert gathered == stages
    if keep == "action" and not s.paired.any():
        assert gathered == len(s)


def test_says_so():
    kept = shard_weights(schedule("1f1b", 2, 3))
    assert repr(kept).endswith("12 actions, 2 gathers of weights)")
    assert kept._repr_html_().count("<td") == 12 + 6
    assert len({kept, shard_weights(schedule("1f1b", 2, 3))}) == 1
    assert hash(kept) == hash(shard_weights(kept, "action"))
    assert kept != shard_weights(kept, "action")


@pytest.mark.parametrize(
    ("keep", "reduce", "message"),
    [
        ("layer", "step", "kept for an 'action', a 'phase', a 'step', or of the next n .*'layer'"),
        (0, "step", "whole number of 1 or more; got 0"),
        (True, "step", "got True"),
        (1, "never", "in every 'action' or once a 'step', got 'never'"),
    ],
)
def test_refuses_other_policies(keep, reduce, message):
    with pytest.raises(ScheduleError, match=message):
        shard_weights(schedule("gpipe", 2, 2), keep, reduce)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0UNSHARD,0B0,0RESHARD", "weights not there: 0F0 at turn 0 on rank 0 needs those of "
         "stage 0, and nothing gathers them before; put 0UNSHARD before it"),
        ("0UNSHARD,0F0,0RESHARD,0B0", "weights not there: 0B0 at turn 3 on rank 0 needs those of "
         "stage 0, and 0RESHARD at turn 2 is the last that was done"),
        ("0UNSHARD,0UNSHARD,0F0,0B0,0RESHARD", "gathered twice: 0UNSHARD at turn 1"),
        ("0RESHARD,0F0,0B0", "weights not there: 0RESHARD at turn 0"),
        ("0UNSHARD,0F0,0B0", "weights left over: those of stage 0 are gathered at turn 0"),
        ("0UNSHARD,0F0,0B0,0RESHARD;1F0,1B0", "1F0 at turn 0 on rank 1 needs those of stage 1"),
        ("0UNSHARD,0F0,0B0,0RESHARD,1UNSHARD,1RESHARD;1UNSHARD,1F0,1B0,1RESHARD",
         "1UNSHARD at turn 4 on rank 0: stage 1 is not on that device, which has 0"),
        ("0UNSHARD,0F0,0F1,0B0,0REDUCE_GRAD,0B1,0RESHARD",
         "a gradient is not reduced: 0B1 at turn 5 on rank 0 adds to stage 0's"),
        ("0UNSHARD,0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD,0RESHARD", "at turn 4 on rank 0 reduces no"),
        ("0UNSHARD,0F0,0REDUCE_GRAD,0B0,0RESHARD", "0REDUCE_GRAD at turn 2 .* reduces no gradient"),
        ("0UNSHARD,0F0,0B0,0REDUCE_GRAD,0RESHARD;1UNSHARD,1F0,1B0,1RESHARD",
         "1B0 at turn 2 on rank 1 adds to stage 1's, and no 1REDUCE_GRAD"),
    ],
)  # fmt: skip
def test_names_each_fault(text, message):
    for look in (validate, simulate):
        with pytest.raises(ScheduleError, match=message):
            look(Schedule.from_text(text))


@pytest.mark.long
@pytest.mark.few(20)
@pytest.mark.parametrize(("name", "keep"), EVERY)
def test_whatever_is_left_out_or_done_twice_is_seen(name, keep):
    kept = shard_weights(made(name, 2), keep)
    for device, row in enumerate(kept.lines):
        for turn, action in enumerate(row):
            if action.kind not in SHARDING:
                continue
            for times in (0, 2):
                if kept.paired.any():
                    continue
                rows = [list(each) for each in kept.lines]
                rows[device][turn : turn + 1] = [action] * times
                with pytest.raises(ScheduleError, match=r"weights|gathered|reduce"):
                    validate(Schedule.of(rows, kept.places))


# -- time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 5])
def test_closed_forms_of_one_stage(m):
    """Nothing hides: gathered for each action, each waits for its own."""
    s, U, F, B, G = schedule("gpipe", 1, m), 0.5, 1.0, 2.0, 0.75
    seconds = {"forward": F, "backward": B, "unshard": U, "reduce_grad": G}
    for keep, gathers in (("action", 2 * m), ("phase", 2), ("step", 1), (1, 1)):
        t = simulate(shard_weights(s, keep), **seconds)
        assert t.makespan == gathers * U + m * (F + B) + G
        assert t.busy == m * (F + B)
        assert t.transfer == gathers * U + G
        assert t.exposed_transfer == gathers * U + G
        assert t.idle_time.total["weights"] == gathers * U
        assert t.idle_time.total["transfer"] == G
        assert t.exposed_transfer == t.idle


def test_gradients_of_weights_wait_for_no_weights():
    """W reads what the forward and I left: its stage's weights are there, and nobody waits."""
    t = simulate(line_of("0F0 0I0 0W0", "action"), unshard=5.0, backward_input=1, backward_weight=1)
    assert t.makespan == 2 * (5.0 + 1.0) + 5.0  # of the last gather nobody uses anything
    (w,) = t.to_frame().query("kind == 'W'").start
    assert w == 2 * (5.0 + 1.0)


def test_waiting_for_weights_is_a_cause_of_its_own():
    """Beside a block that comes later, and beside who starts late."""
    spans = [
        (0, "F", 0, 0, 0.0, 1.0), (1, "UNSHARD", 1, -1, 0.0, 3.0), (1, "T", 0, 0, 2.0, 4.0),
        (1, "F", 1, 0, 4.5, 5.5), (1, "UNSHARD", 1, -1, 4.6, 5.0),  # of the next
    ]  # fmt: skip
    found = Timeline.of(2, spans, "measured").idle_time.per_device
    waited = {cause: seconds[1] for cause, seconds in found.items() if seconds[1]}
    assert waited == {"warm-up": 1.0, "weights": 2.0, "transfer": 1.0, "overhead": 0.5}
    t = simulate(shard_weights(schedule("1f1b", 2, 2), "action"), unshard=2.0, latency=0.5)
    assert t.idle_time.total["weights"] > 0
    both = t.idle_time.total["weights"] + t.idle_time.total["transfer"]
    assert both == pytest.approx(t.exposed_transfer)


def test_a_gather_ahead_is_hidden():
    """Two stages of a device: the second's weights come while the first's are used."""
    s = Schedule.from_text("0F0 0F1 1F0 1F1 1B0 1B1 0B0 0B1")
    one, two = (simulate(shard_weights(s, n), unshard=2.5) for n in (1, 2))
    work = 4 * (1.0 + 2.0)
    assert (one.makespan, one.exposed_transfer) == (work + 3 * 2.5, 3 * 2.5)
    assert (two.makespan, two.exposed_transfer) == (work + 3.0, 3.0)  # two forwards hide 2 s of it
    assert two.transfer == 5.0


@pytest.mark.long
def test_a_gather_waits_for_what_is_dropped_before_it():
    """However free the stream: there is no room sooner."""
    t = simulate(shard_weights(schedule("gpipe", 1, 2), "action"), unshard=0.25)
    gathers = t.to_frame().query("kind == 'UNSHARD'").start.tolist()
    drops = t.to_frame().query("kind == 'RESHARD'").start.tolist()
    assert gathers == [0.0, *drops[:-1]]
    assert drops == t.to_frame().query("kind == 'F' or kind == 'B'").end.tolist()


@pytest.mark.parametrize(("name", "keep"), EVERY)
def test_it_costs_nothing_that_takes_no_time_and_never_gains(name, keep):
    s = made(name)
    kept, times = shard_weights(s, keep), {"latency": 0.25, "backward": 1.5}
    plain, free = simulate(s, **times), simulate(kept, **times)
    assert free.makespan == plain.makespan
    assert np.array_equal(np.sort(free.start[free.computes]), np.sort(plain.start))
    slow = simulate(kept, **times, unshard=[0.5, 1.0] * (s.stages // 2), reduce_grad=0.25)
    assert slow.makespan > plain.makespan
    assert slow.busy == pytest.approx(plain.busy)
    assert sum(slow.idle_time.total.values()) == pytest.approx(slow.idle)
    assert slow.peak_in_flight == plain.peak_in_flight
    assert slow.critical_path.compute + slow.critical_path.latency <= slow.makespan


@pytest.mark.long
def test_the_compiled_loops_say_the_same(monkeypatch):
    def every():
        return [
            simulate(shard_weights(made(name), keep), unshard=0.7, reduce_grad=0.4, latency=0.1)
            for name, keep in EVERY
        ]

    plain = every()
    monkeypatch.setattr(longest_path, "LARGE", 0)
    for one, other in zip(plain, every(), strict=True):
        assert np.array_equal(one.start, other.start)
        assert np.array_equal(one.end, other.end)


@pytest.mark.parametrize("seconds", [[1.0], -1.0, float("nan"), "x"])
def test_refuses_impossible_seconds(seconds):
    with pytest.raises(ScheduleError, match="unshard must be"):
        simulate(shard_weights(schedule("gpipe", 2, 2)), unshard=seconds)


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.few(10)
@pytest.mark.parametrize(("name", "keep"), EVERY)
def test_weights_are_held_from_their_gather_to_their_drop(name, keep):
    """Counted in loops at every moment at which anything changes."""
    kept = shard_weights(made(name), keep)
    whole, summed = [10, 20, 40, 80][: kept.stages], [1, 2, 3, 4][: kept.stages]
    t = simulate(kept, unshard=0.5, reduce_grad=0.25, latency=0.125)
    held = memory_over_time(t, activation=0, gathered=whole, unreduced=summed)
    frame = t.to_frame()
    for d, (times, found) in enumerate(held.steps):
        mine = frame[frame.device == d]
        for at in np.unique(times) + 1e-6:
            total = 0
            for s in range(kept.stages):
                rows = mine[mine.stage == s]
                begun = rows[(rows.kind == "UNSHARD") & (rows.start <= at)]
                ended = rows[(rows.kind == "RESHARD") & (rows.end <= at)]
                total += whole[s] * (len(begun) - len(ended))
                backwards = rows[rows.kind.isin(["B", "W"]) & (rows.start <= at)]
                reduced = rows[(rows.kind == "REDUCE_GRAD") & (rows.end <= at)]
                total += summed[s] * (bool(len(backwards)) - bool(len(reduced)))
            last = found[np.searchsorted(times, at, side="right") - 1]
            assert last == total, (d, at)


def test_peaks_are_the_stages_at_a_time():
    s = schedule("interleaved", 8, 8, devices=2)
    for count in (1, 2, 3, 4):
        t = simulate(shard_weights(s, count), unshard=0.1)
        assert memory_over_time(t, activation=0, gathered=10).peaks == (10 * count,) * 2
