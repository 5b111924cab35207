"""Schedules executed: the gradients of one device, the order of the schedule, honest clocks."""

from itertools import pairwise

import numpy as np
import pytest

import tiledask as td
from tiledask.dist.stages import FeedForward, HalfFeedForward, first_that_fails, stack
from tiledask.errors import DeadlineError, PlacementError, ScheduleError

pytestmark = pytest.mark.cluster

SHAPE = {"width": 12, "hidden": 20, "dtype": "float64"}
RNG = np.random.default_rng(0)
BATCH, TARGET = RNG.standard_normal((11, 12)), RNG.standard_normal((11, 12))


def one_device(stages):
    """Outputs, loss and gradients without cluster, schedule or micro-batches."""
    x, kept, weights = BATCH, [], [stage.init("numpy") for stage in stages]
    for stage, w in zip(stages, weights, strict=True):
        x, saved = stage.forward(w, x)
        kept.append(saved)
    loss = float(((x - TARGET) ** 2).mean())
    dy, gradients = 2 * (x - TARGET) / x.size, []
    for stage, w, saved in zip(reversed(stages), reversed(weights), reversed(kept), strict=True):
        dy, of_weights = stage.backward_input(w, saved, dy)
        gradients.insert(0, stage.backward_weight(of_weights))
    return x, loss, gradients


def assert_same(run, stages, schedule):
    outputs, loss, gradients = one_device(stages)
    np.testing.assert_allclose(run.outputs, outputs, rtol=0, atol=1e-12)
    assert run.loss == pytest.approx(loss, abs=1e-12)
    for mine, theirs in zip(run.gradients, gradients, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            for name in b:
                np.testing.assert_allclose(a[name], b[name], rtol=0, atol=1e-12)
    assert run.traffic.predicted == run.traffic.measured
    for device in range(schedule.devices):
        frame = run.timeline.to_frame().query("device == @device and kind != 'T'")
        ran = [f"{r.stage}{r.kind}{r.microbatch}" for r in frame.sort_values("start").itertuples()]
        assert ran == list(map(str, schedule.actions(device)))
        ends = list(zip(frame.start, frame.end, strict=True))
        assert all(b[0] >= a[1] for a, b in pairwise(sorted(ends)))  # one thing at a time


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), [(1, 1), (1, 3), (2, 1), (3, 2), (4, 1), (4, 6)])
def test_every_schedule_gives_the_gradients_of_one_device(cluster, name, p, m):
    stages = stack(td.partition([1.0] * 7, p).bounds, **SHAPE)
    schedule = td.schedule(name, p, m)
    assert_same(td.run_schedule(schedule, stages, BATCH, cluster, target=TARGET), stages, schedule)


@pytest.mark.parametrize("name", sorted(set(td.schedules) - {"naive", "gpipe", "1f1b"}))
@pytest.mark.parametrize("m", [1, 5])
def test_every_other_schedule_does_too(cluster, name, m):
    p = 2 if name == "wave" else 3
    looped = name in ("interleaved", "looped-bfs", "interleaved-zb", "wave")
    stages_each = {"wave": 4}.get(name, 1 if name.startswith(("eager", "zb-h", "zb-a")) else 2)
    schedule = td.schedule(name, stages_each * p, m, **({"devices": p} if looped else {}))
    stages = stack(range(stages_each * p + 1), **SHAPE)
    assert_same(td.run_schedule(schedule, stages, BATCH, cluster, target=TARGET), stages, schedule)


def test_a_split_backward(cluster):
    schedule = td.Schedule.from_text("0F0,0F1,0I0,0I1,0W0,0W1; 1F0,1I0,1F1,1I1,1W1,1W0")
    stages = stack((0, 2, 3), **SHAPE)
    assert_same(td.run_schedule(schedule, stages, BATCH, cluster, target=TARGET), stages, schedule)


def test_forward_only(cluster):
    stages = stack((0, 2, 5), **SHAPE)
    schedule = td.schedule("gpipe", 2, 3, forward_only=True)
    run = td.run_schedule(schedule, stages, BATCH, cluster)
    np.testing.assert_allclose(run.outputs, one_device(stages)[0], rtol=0, atol=1e-12)
    assert (run.loss, run.gradients) == (None, ())


def test_one_micro_batch_has_the_bits_of_one_worker(cluster):
    whole = td.run_schedule(
        td.schedule("naive", 1, 1), stack((0, 6), **SHAPE), BATCH, cluster, target=TARGET
    )
    split = td.run_schedule(
        td.schedule("naive", 3, 1), stack((0, 1, 4, 6), **SHAPE), BATCH, cluster, target=TARGET
    )
    assert split.outputs.tobytes() == whole.outputs.tobytes()


def test_stages_cost_their_activations_and_nothing_else(cluster):
    run = td.run_schedule(
        td.schedule("1f1b", 3, 2), stack((0, 1, 2, 3), **SHAPE), BATCH, cluster, target=TARGET
    )
    # 2 boundaries, there and back, 11 rows of 12 float64
    assert run.traffic.measured.total == 2 * 2 * 11 * 12 * 8
    assert run.traffic.measured.count == 2 * 2 * 2


def test_time_adds_up_and_nothing_starts_before_what_it_needs(cluster):
    schedule = td.schedule("1f1b", 3, 4)
    run = td.run_schedule(
        schedule, stack((0, 1, 2, 3), **SHAPE), BATCH, cluster,
        target=TARGET, forward=0.02, backward=0.04,
    )  # fmt: skip
    t = run.timeline
    assert t.origin == "measured"
    assert t.busy + t.idle == pytest.approx(t.devices * t.makespan, abs=1e-9)
    assert t.busy >= 3 * 4 * 0.06  # every action kept its device as long as it was told
    assert t.makespan >= td.simulate(schedule, forward=0.02, backward=0.04).makespan
    when = {(r.kind, r.stage, r.microbatch): r for r in t.to_frame().itertuples() if r.kind != "T"}
    for i in range(4):
        for s in range(2):
            assert when["F", s, i].end <= when["F", s + 1, i].start
            assert when["B", s + 1, i].end <= when["B", s, i].start


def test_an_action_that_needs_longer_than_its_time_is_reported(cluster):
    run = td.run_schedule(
        td.schedule("gpipe", 1, 1, forward_only=True), [Sleeper(12)], BATCH, cluster, forward=0.01
    )
    assert 0.03 < run.late < 0.5


class Sleeper:
    """A stage that takes 50 ms whatever it is given."""

    def __init__(self, width):
        self.width = width

    def init(self, backend):
        return None

    def forward(self, weights, x):
        import time

        time.sleep(0.05)
        return x, None


def test_a_run_that_takes_too_long_ends(cluster):
    with pytest.raises(DeadlineError, match=r"not done after 0\.2 s"):
        td.run_schedule(
            td.schedule("gpipe", 2, 2), stack((0, 1, 2), **SHAPE), BATCH, cluster,
            target=TARGET, forward=0.5, timeout=0.2,
        )  # fmt: skip


def faulty():
    stages = stack((0, 1, 2), **SHAPE)
    s = td.schedule("gpipe", 2, 2)
    yield ScheduleError, "2 stages and the model 1", (s, stages[:1], BATCH), {"target": TARGET}
    yield PlacementError, "5 devices, the cluster 4 slots", (
        td.schedule("gpipe", 5, 2), stack(range(6), **SHAPE), BATCH,
    ), {"target": TARGET}  # fmt: skip
    yield PlacementError, r"shape \(11, 5\) and the stages take \[tokens, 12\]", (
        s, stages, BATCH[:, :5]), {"target": TARGET}  # fmt: skip
    yield (
        PlacementError,
        "1 tokens cannot be cut into 2",
        (s, stages, BATCH[:1]),
        {"target": TARGET[:1]},
    )
    yield PlacementError, "needs target=", (s, stages, BATCH), {}
    yield PlacementError, r"target has shape \(3, 12\)", (s, stages, BATCH), {"target": TARGET[:3]}
    yield ScheduleError, "forward has 3 durations and the schedule 2", (s, stages, BATCH), {
        "target": TARGET, "forward": [1, 2, 3]}  # fmt: skip
    yield (
        ScheduleError,
        "0 or more and finite",
        (s, stages, BATCH),
        {"target": TARGET, "backward": -1},
    )
    broken = td.Schedule.from_text("0F0,0B0; 1B0,1F0")
    yield ScheduleError, "backward before forward", (broken, stages, BATCH), {"target": TARGET}


def test_what_cannot_run_is_refused_before_it_does(cluster):
    for error, message, args, options in faulty():
        with pytest.raises(error, match=message):
            td.run_schedule(*args, cluster, **options)


def test_serving_stages_hold_two_bytes_a_weight():
    (stage,) = stack((0, 2), HalfFeedForward, width=64, hidden=128, rows=16)
    weights = stage.init("numpy")
    assert sum(w.nbytes for pair in weights for w in pair) == stage.weight_bytes
    x = np.random.default_rng(1).standard_normal((3, 64)).astype("f4")
    y, _ = stage.forward(weights, x)
    expected = x
    for w1, w2 in weights:
        h = expected @ w1.astype("f4")
        h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        expected = expected + h @ w2.astype("f4")
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_weights_belong_to_the_layer_and_not_to_the_stage():
    whole, (_, second) = FeedForward((0, 1, 2), 4, 8), stack((0, 1, 3), width=4, hidden=8)
    for a, b in zip(whole.init("numpy")[1:], second.init("numpy"), strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])


def test_transfers_are_drawn_where_they_arrive(cluster):
    schedule = td.schedule("gpipe", 2, 3, forward_only=True)
    run = td.run_schedule(schedule, stack((0, 1, 2), **SHAPE), BATCH, cluster)
    transfers = run.timeline.to_frame().query("kind == 'T'")
    assert transfers.device.tolist() == [1, 1, 1]


def test_a_split_backward_takes_half_each():
    from tiledask.dist.pipeline import _pace

    pace = _pace(td.schedule("gpipe", 2, 1), 1.0, 4.0)
    assert (pace["B"], pace["I"], pace["W"]) == ([4, 4], [2, 2], [2, 2])


def test_late_is_the_longest(cluster):
    schedule = td.schedule("gpipe", 2, 1, forward_only=True)
    stages = [Sleeper(12), *stack((0, 1), **SHAPE)]  # the second is on time
    run = td.run_schedule(schedule, stages, BATCH, cluster, forward=[0.01, 0.3])
    assert run.late > 0.03


def test_a_run_says_what_its_slots_held(cluster):
    stages = stack((0, 3, 6), width=512, hidden=2048)
    batch = np.ones((4, 512), "f4")
    run = td.run_schedule(td.schedule("gpipe", 2, 1, forward_only=True), stages, batch, cluster)
    assert all(run.memory.per_place[slot] > 0.9 * stages[slot].weight_bytes for slot in (0, 1))


def test_stages_say_their_bytes():
    stage = FeedForward((0, 1), 12, 20)
    held = sum(w.nbytes for layer in stage.init("numpy") for w in layer.values())
    assert stage.weight_bytes == held
    assert HalfFeedForward((0,), 64, 128, rows=16).workspace_bytes == 16 * 128 * 4


def test_a_stage_that_no_memory_limits_is_held_whole():
    (stage,) = stack((0, 3), HalfFeedForward, width=8, hidden=16)
    assert first_that_fails(stage, "numpy") == 0


def test_the_layer_that_fails_is_counted_from_one(monkeypatch):
    drawn = []

    def draw(self, layer, which, shape, backend):
        drawn.append(layer)
        if len(drawn) == 6:  # the second matrix of the third layer
            raise MemoryError
        return np.empty(shape, np.float16)

    monkeypatch.setattr(HalfFeedForward, "_draw", draw)
    (stage,) = stack((4, 12), HalfFeedForward, width=8, hidden=16)
    assert first_that_fails(stage, "numpy") == 3
