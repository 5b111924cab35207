"""V-shaped and wave orders: published makespans and memory, lower bounds, any p and m."""

from itertools import product

import numpy as np
import pytest

from tiledask.errors import ScheduleError
from tiledask.plan.needs import needs, peak_in_flight, validate
from tiledask.plan.schedule import Action, Schedule
from tiledask.plan.schedules import schedule
from tiledask.plan.simulate import simulate
from tiledask.plan.v_shape import dualpipev, v_half, v_min, wave, zb_v

GENERATORS = {
    "zb_v": lambda p, m: zb_v(2 * p, m),
    "dualpipev": lambda p, m: dualpipev(2 * p, m),
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
        assert full == (name in {"dualpipev", "one wave", "two waves"})


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


def paired_timeline(built: Schedule, seconds: dict[str, float], pair: float) -> np.ndarray:
    """Idle seconds per device where an F with the B after it is one action of ``pair`` seconds.

    It starts when both can and gives both results at its end. The first such pair of the last
    device is not joined (DeepSeek's and PyTorch's DualPipeV).
    """
    rows = []
    for d in range(built.devices):
        row, lone = [], d == built.devices - 1
        for a in built.actions(d):
            if a.kind == "B" and row[-1][-1].kind == "F" and not lone:
                row[-1] += (a,)
            else:
                lone = lone and a.kind != "B"
                row.append((a,))
        rows.append(row)
    waits, end = needs(built), {}
    clock, busy = np.zeros(built.devices), np.zeros(built.devices)
    while any(rows):
        for d, row in enumerate(rows):
            while row:
                before = [b for a in row[0] for b in waits[a] if b not in row[0]]
                if any(b not in end for b in before):
                    break
                actions = row.pop(0)
                time = pair if len(actions) == 2 else seconds[actions[0].kind]
                clock[d] = max([clock[d], *(end[b] for b in before)]) + time
                busy[d] += time
                end |= dict.fromkeys(actions, clock[d])
    return clock.max() - busy


UNIT = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}


@pytest.mark.parametrize(
    ("p", "m", "makespan", "peak"), [(2, 4, 26, 5), (4, 8, 54, 9), (8, 32, 206, 17)]
)
def test_dualpipev_as_pytorch(p, m, makespan, peak):
    """torch 2.13.0, DualPipeV: pairs as one action of F + B; in turn, F and B lose p - 1 less."""
    built = dualpipev(2 * p, m)
    assert paired_timeline(built, UNIT, pair=3.0) == pytest.approx(makespan - 6 * m)
    assert equal_chunks(built).makespan == makespan - (p - 1)
    assert peak_in_flight(built) == (peak,) * p


def test_dualpipev_with_overlap_as_pytorchs_file():
    """dualpipev_4rank_10mb.csv of PyTorch's tests, a pair in 2 seconds; (PP/2-1)(F&B+B-3W)."""
    built = dualpipev(8, 10)
    assert paired_timeline(built, UNIT, pair=2.0).tolist() == [1.0, 2.0, 3.0, 3.0]
    assert peak_in_flight(built) == (9, 9, 9, 9)
    end = built.to_text().splitlines()[2].split(",")[-11:]
    assert end == ["5B7", "2B6", "5B8", "2I7", "5I9", "2I8", "2W7", "2I9", "5W9", "2W8", "2W9"]


def test_dualpipev_2_devices():
    assert dualpipev(4, 4).to_text().splitlines() == [
        "0F0,0F1,0F2,3F0,3I0,3W0,3F1,0F3,3B1,3F2,0B0,3B2,3F3,0B1,3B3,0I2,0W2,0I3,0W3",
        "1F0,2F0,1F1,2F1,1F2,2B0,2F2,1B0,1F3,2B1,2F3,1B1,2B2,1B2,2I3,1I3,2W3,1W3",
    ]


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


@pytest.mark.parametrize("build", [zb_v, dualpipev, v_half, v_min])
def test_refuses_an_odd_number_of_stages(build):
    with pytest.raises(ScheduleError, match="7 stages are odd; use 8 stages"):
        build(7, 4)


def test_wave_refuses_stages_that_do_not_come_back():
    with pytest.raises(ScheduleError, match="12 stages are no multiple of 2 x 4 devices; use 8"):
        wave(12, 4, devices=4)
    with pytest.raises(ScheduleError, match="devices must be a whole number"):
        wave(4, 4, devices=0)
