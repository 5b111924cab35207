"""V-shaped and wave orders: published makespans and memory, lower bounds, any p and m.

Holds `tiledask.plan.pipelines.generators.given`, `tiledask.plan.pipelines.generators.lanes` and
`tiledask.plan.pipelines.generators.zb_v`.
"""

import numpy as np
import pytest

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.generators.zb_v import v_auto, v_half, v_min, wave, zb_v
from tiledask.plan.pipelines.generators.zero_bubble import zb_auto
from tiledask.plan.pipelines.needs import peak_in_flight, peaks, validate
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import schedule
from tiledask.plan.pipelines.simulate import simulate

GENERATORS = {
    "zb_v": lambda p, m: zb_v(2 * p, m),
    "v_half": lambda p, m: v_half(2 * p, m),
    "v_min": lambda p, m: v_min(2 * p, m),
    "v_auto": lambda p, m: v_auto(2 * p, m, latency=0.1),
    "one wave": lambda p, m: wave(2 * p, m, devices=p),
    "two waves": lambda p, m: wave(4 * p, m, devices=p),
}


def equal_chunks(built: Schedule):
    """The Timeline at F = I = W = 1 for each chunk."""
    return simulate(built, 1.0, 2.0)


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("p", range(1, 6))
def test_the_stages_go_down_and_up(name, p):
    for m in (1, 5):
        built = GENERATORS[name](p, m)
        down_and_up = [*range(p), *range(p)[::-1]]
        assert list(built.place) == down_and_up * (built.stages // (2 * p))
        assert any(a.kind == "B" for a in built) == (name in {"one wave", "two waves"})


def test_zb_v_2_devices():
    """Figure 6 of arXiv 2401.10241 for 2 devices: warm-up down and up, then F I W in turns."""
    assert zb_v(4, 3).to_text().splitlines() == [
        "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,0I2,0W2",
        "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2",
    ]


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
    ("build", "p", "m", "makespan", "peak"), [(v_min, 6, 24, 161, 6), (v_half, 5, 40, 251, 6)]
)
def test_v_min_and_v_half_as_their_authors(build, p, m, makespan, peak):
    """The authors' zbv_greedy.py (arXiv 2405.15362), chunks of F = I = W = 1."""
    t = equal_chunks(build(2 * p, m))
    assert (t.makespan, max(t.peak_in_flight)) == (makespan, peak)


@pytest.mark.long
@pytest.mark.parametrize("p", range(1, 9))
def test_v_schedules_trade_time_for_memory(p):
    for m in (1, 2, 5, 12):
        assert max(peak_in_flight(v_half(2 * p, m))) <= min(2 * m, p + 2 + p % 2)
        assert max(peak_in_flight(v_min(2 * p, m))) <= min(2 * m, 2 * p // 3 + 3)
    built = [build(2 * p, 4 * p) for build in (v_min, v_half, zb_v)]
    low, middle, high = (max(peak_in_flight(s)) for s in built)
    assert p < 3 or low <= middle <= high == 2 * p
    times = [equal_chunks(s).makespan for s in built]
    assert p < 3 or times == sorted(times, reverse=True)


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


def test_a_wave_turns_round_without_a_transfer():
    """Latency is paid only between devices: 2 p - 2 of 2 p - 1 boundaries each way."""
    for p in range(1, 5):
        t = simulate(wave(2 * p, 1, devices=p), 1.0, 2.0, latency=0.5)
        assert t.makespan == 2 * p * 3 + 0.5 * 2 * (2 * p - 2)
    t = simulate(wave(4, 12, devices=2), 1.0, 2.0)
    assert (t.makespan, max(t.peak_in_flight) <= 2 * 4) == (76.0, True)


def drawn(rng):
    """Devices and micro-batches; times of F, I, W [kind, chunk], and on the way; memory: a limit,
    and what of a chunk's activation W needs."""
    p = int(rng.integers(1, 7))
    m = int(rng.choice([1, 2, p, 2 * p, 4 * p]))
    seconds = rng.uniform((0.5, 0.5, 0.3), (1.5, 1.8, 1.4), (2 * p, 3)).T
    if rng.random() < 0.5:
        seconds[:] = seconds[:, :1]
    limit = rng.choice([rng.uniform(2, 2 * p + 0.5), 2 * p, rng.uniform(2 * p, 4 * p)])
    return p, m, seconds, rng.choice([0.0, 0.05, 0.4]), limit, rng.uniform(0.1, 1.0)


def slowness(built, times, goal):
    t = simulate(built, **times)
    begun, ended = (t.to_frame().groupby("device")[x] for x in ("start", "end"))
    return max(ended.max() - begun.min()) if goal == "span" else t.makespan


@pytest.mark.few(2)
@pytest.mark.long
@pytest.mark.parametrize("seed", range(100))
def test_an_order_for_given_times_is_as_fast_as_any_that_fits(seed):
    """Five plans a seed, of p stages and of 2p in a V: valid, within their memory, not slower than
    the table's orders that keep within it, nor when searched. 1F1B, which crosses half as many
    links as a V, is there for both where nothing is paid for them."""
    rng = np.random.default_rng(seed)
    for _ in range(5):
        p, m, chunks, latency, limit, part = drawn(rng)
        whole = chunks.reshape(3, p, 2).sum(2)
        kinds = "forward", "backward_input", "backward_weight"
        of_v, of_p = (
            dict(zip(kinds, seconds.tolist(), strict=True), latency=latency)
            for seconds in (chunks, whole)
        )
        straight = ("1f1b", p, of_p, 2)
        in_v = [(name, 2 * p, of_v, 1) for name in ("zb-v", "v-half", "v-min")]
        in_v += [straight] if latency == np.ptp(chunks, axis=1).max() == 0 else []
        alone = [straight, ("zb-h1", p, of_p, 2), ("zb-h2", p, of_p, 2)]
        for make, stages, times, size, rivals, goal in (
            (v_auto, 2 * p, of_v, 1, in_v, "makespan"),
            (zb_auto, p, of_p, 2, alone, "makespan"),
            (zb_auto, p, of_p, 2, alone, "span"),
        ):
            found = []
            sizes = {"activation": size, "weight_part": size * part}
            for tries in (0, 100):
                told = times | sizes | {"memory_limit": limit, "tries": tries, "goal": goal}
                built = make(stages, m, **told)
                validate(built, stages, m, limit * (1 + 1e-8), **sizes)
                found.append(slowness(built, times, goal))
            assert found[1] <= found[0] * (1 + 1e-9)
            for name, count, seconds, each in rivals:
                rival = schedule(name, count, m)
                if max(peak for peak, _ in peaks(rival, each, each * part)) <= limit:
                    assert found[0] <= slowness(rival, seconds, goal) * (1 + 1e-9), name


@pytest.mark.parametrize(
    ("p", "m", "I", "W", "c", "limit", "theirs"),
    [
        (4, 8, 1.0, 0.5, 0.25, 8, 47.0),
        (4, 16, 1.25, 0.75, 0.5, 12, 102.0),
        (8, 24, 1.5, 1.0, 0.1, 16, 182.0),
    ],
)
def test_v_auto_is_as_good_as_its_authors_program(p, m, I, W, c, limit, theirs):
    """The makespan of the order that zbv.py of sail-sg/zero-bubble-pipeline-parallelism finds."""
    times = {"forward": 1.0, "backward_input": I, "backward_weight": W, "latency": c}
    found = v_auto(2 * p, m, **times, memory_limit=limit)
    assert simulate(found, **times).makespan <= theirs + 1e-9


@pytest.mark.parametrize(
    ("call", "words"),
    [
        *((lambda b=b: b(7, 4), "7 stages are odd; use 8 stages") for b in (zb_v, v_half, v_min)),
        (lambda: wave(12, 4, devices=4), "12 stages are no multiple of 2 x 4 devices; use 8"),
        (lambda: wave(4, 4, devices=0), "devices must be a whole number"),
        (lambda: v_auto(4, 4, memory_limit=1.5), "takes 2 of memory and the limit is 1.5; allow 2"),
        (lambda: v_auto(4, 4, forward=[1, 2]), "forward must be .* 4 stages, got 2"),
        (lambda: v_auto(4, 4, latency=-1), "finite and 0 or more seconds, got -1"),
        (lambda: v_auto(4, 4, goal="speed"), "goal is a short span or makespan, got 'speed'"),
        (lambda: v_auto(4, 4, tries=-1), "tries must be a whole number of 0 or more"),
    ],
)
def test_stages_that_do_not_come_back_are_refused(call, words):
    with pytest.raises(ScheduleError, match=words):
        call()
