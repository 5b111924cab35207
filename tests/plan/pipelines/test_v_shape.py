"""V-shaped and wave orders: published makespans and memory, lower bounds, any p and m.

Holds `tiledask.plan.pipelines.generators.lanes` and `tiledask.plan.pipelines.generators.zb_v`.
"""

from itertools import product

import pytest

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.generators.zb_v import v_half, v_min, wave, zb_v
from tiledask.plan.pipelines.needs import peak_in_flight, validate
from tiledask.plan.pipelines.schedule import Action, Schedule
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate

GENERATORS = {
    "zb_v": lambda p, m: zb_v(2 * p, m),
    "v_half": lambda p, m: v_half(2 * p, m),
    "v_min": lambda p, m: v_min(2 * p, m),
    "one wave": lambda p, m: wave(2 * p, m, devices=p),
    "two waves": lambda p, m: wave(4 * p, m, devices=p),
}


def equal_chunks(built: Schedule):
    """The Timeline at F = I = W = 1 for each chunk."""
    return simulate(built, 1.0, 2.0)


def longest_span(t) -> float:
    spans = (t.end[t.device == d].max() - t.start[t.device == d].min() for d in range(t.devices))
    return float(max(spans))


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("p", range(1, 6))
def test_every_action_is_there_once_in_its_place_and_runs(name, p):
    for m in range(1, 10):
        built = GENERATORS[name](p, m)
        assert built.devices == p
        down_and_up = [*range(p), *range(p)[::-1]]
        assert list(built.place) == down_and_up * (built.stages // (2 * p))
        validate(built, microbatches=m)
        full = any(a.kind == "B" for a in built)
        assert full == (name in {"one wave", "two waves"})


def test_zb_v_2_devices():
    """Figure 6 of arXiv 2401.10241 for 2 devices: warm-up down and up, then F I W in turns."""
    assert zb_v(4, 3).to_text().splitlines() == [
        "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,0I2,0W2",
        "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2",
    ]


@pytest.mark.parametrize(
    ("p", "m", "makespan", "span", "peak"),
    [(4, 8, 51, 48, 8), (8, 16, 103, 96, 16), (8, 32, 199, 192, 16)],
)
def test_zb_v_as_pytorch(p, m, makespan, span, peak):
    """torch 2.13.0, ZBVZeroBubble, F = I = W = 1 per chunk; the first is the lower bound's."""
    t = equal_chunks(zb_v(2 * p, m))
    assert (t.makespan, longest_span(t), max(t.peak_in_flight)) == (makespan, span, peak)


def test_zb_v_with_few_microbatches_leaves_out_the_others():
    """As PyTorch, the order for m = 2p - 1 without the micro-batches that there are not."""
    for p in range(1, 6):
        full = zb_v(2 * p, 2 * p - 1)
        for m in range(1, 2 * p - 1):
            kept = [[a for a in order if a.microbatch < m] for order in full.orders]
            assert zb_v(2 * p, m) == Schedule.of(kept, full.place)


@pytest.mark.parametrize("p", range(1, 7))
def test_zb_v_attains_the_lower_bound(p):
    """(p-1) F + m (time of both chunks): no order is faster on the last device."""
    for m in (2 * p - 1, 2 * p, 5 * p):
        built = zb_v(2 * p, m)
        t = equal_chunks(built)
        assert t.makespan == (p - 1) + 6 * m
        assert t.span_bubble == pytest.approx(0.0, abs=1e-12)
        assert max(peak_in_flight(built)) == min(2 * p, 2 * m)


@pytest.mark.parametrize(
    ("build", "p", "m", "makespan", "peak"),
    [
        (v_min, 8, 24, 171, 8),
        (v_min, 8, 64, 411, 8),
        (v_min, 6, 24, 161, 6),
        (v_half, 4, 8, 53, 6),
        (v_half, 8, 64, 401, 10),
        (v_half, 5, 40, 251, 6),
    ],
)
def test_v_min_and_v_half_as_their_authors(build, p, m, makespan, peak):
    """The authors' zbv_greedy.py (arXiv 2405.15362), chunks of F = I = W = 1."""
    t = equal_chunks(build(2 * p, m))
    assert (t.makespan, max(t.peak_in_flight)) == (makespan, peak)


@pytest.mark.parametrize("p", range(3, 9))
def test_v_schedules_trade_time_for_memory(p):
    m = 4 * p
    built = [build(2 * p, m) for build in (v_min, v_half, zb_v)]
    peaks = [max(peak_in_flight(s)) for s in built]
    times = [equal_chunks(s).makespan for s in built]
    assert peaks[0] <= peaks[1] <= peaks[2] == 2 * p
    assert times[0] >= times[1] >= times[2]
    assert peaks[1] <= p + 2
    assert peaks[0] <= 2 * p / 3 + 3


def test_wave_2_devices():
    assert wave(4, 2, devices=2).to_text().splitlines() == [
        "0F0,0F1,3F0,3B0,3F1,3B1,0B0,0B1",
        "1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1",
    ]


@pytest.mark.parametrize("p", [2, 4, 8])
def test_more_waves_idle_less(p):
    """As many micro-batches as devices: less than 1F1B's (p-1)/m, and at least it over 2W."""
    overheads = [
        simulate(wave(2 * w * p, p, devices=p), 1.0, 2.0).bubble_overhead for w in (1, 2, 4)
    ]
    straight = simulate(schedule("1f1b", p, p), 1.0, 2.0).bubble_overhead
    assert straight > overheads[0] > overheads[1] > overheads[2]
    for w, overhead in zip((1, 2, 4), overheads, strict=True):
        assert straight / (2 * w) <= overhead <= 1.5 * straight / (2 * w)


def test_wave_goes_on_with_more_microbatches():
    t = simulate(wave(4, 12, devices=2), 1.0, 2.0)
    assert (t.makespan, 12 * 6) == (76.0, 72)
    assert max(t.peak_in_flight) <= 2 * 4


def test_a_wave_turns_round_without_a_transfer():
    """Latency is paid only between devices: 2 p - 2 of 2 p - 1 boundaries each way."""
    for p in range(1, 5):
        t = simulate(wave(2 * p, 1, devices=p), 1.0, 2.0, latency=0.5)
        assert t.makespan == 2 * p * 3 + 0.5 * 2 * (2 * p - 2)


@pytest.mark.long
def test_what_is_pulled_ahead_stays_within_the_memory_of_the_block():
    for p, m in product(range(1, 7), (1, 2, 5, 12)):
        for build in (v_half, v_min):
            most = {v_half: p + 2 + p % 2, v_min: 2 * p // 3 + 3}[build]
            assert max(peak_in_flight(build(2 * p, m))) <= min(2 * m, most)


def test_an_activation_freed_before_its_weight_gradient_is_refused():
    built = zb_v(4, 3)
    swapped = built.to_text().replace("3I0,3W0", "3W0,3I0")
    with pytest.raises(ScheduleError, match="too early: 3W0"):
        validate(Schedule.from_text(swapped))
    missing = Schedule.of(
        ([a for a in order if a != Action("W", 2, 2)] for order in built.orders), built.place
    )
    with pytest.raises(ScheduleError, match="missing 2W2 on device 1"):
        validate(missing)


@pytest.mark.parametrize("build", [zb_v, v_half, v_min])
def test_refuses_an_odd_number_of_stages(build):
    with pytest.raises(ScheduleError, match="7 stages are odd; use 8 stages"):
        build(7, 4)


def test_wave_refuses_stages_that_do_not_come_back():
    with pytest.raises(ScheduleError, match="12 stages are no multiple of 2 x 4 devices; use 8"):
        wave(12, 4, devices=4)
    with pytest.raises(ScheduleError, match="devices must be a whole number"):
        wave(4, 4, devices=0)
