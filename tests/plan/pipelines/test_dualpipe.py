"""DualPipe and DualPipeV against DeepSeek's and PyTorch's programs; Chimera against its paper.

Holds `tiledask.plan.pipelines.generators.chimera`.
"""

import numpy as np
import pytest

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.generators.chimera import chimera
from tiledask.plan.pipelines.generators.dualpipe import dualpipe, dualpipev
from tiledask.plan.pipelines.needs import needs, peak_in_flight, validate
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.simulate import simulate


def paired_timeline(built: Schedule, seconds: dict[str, float], pair: float) -> np.ndarray:
    """Idle seconds per device where an F with the B after it is one action of ``pair`` seconds.

    It starts when both can and gives both results at its end. Which are joined is worked out
    here, and not read from ``built``: all, but for the first of the last device of a V and of
    the two devices in the middle (as DeepSeek's and PyTorch's programs).
    """
    middle = built.devices // built.replicas
    middle = (middle - 1, middle)  # in a V the second is no device
    rows = []
    for d in range(built.devices):
        row, lone = [], d in middle
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
    t = simulate(built, 1.0, 2.0)
    assert paired_timeline(built, UNIT, pair=3.0) == pytest.approx(np.array(t.idle_per_device))
    assert t.makespan == makespan
    alone = Schedule.of(built.orders, built.place)
    assert simulate(alone, 1.0, 2.0).makespan == makespan - (p - 1)
    assert peak_in_flight(built) == (peak,) * p


@pytest.mark.long
def test_dualpipev_with_overlap_as_pytorchs_file():
    """dualpipev_4rank_10mb.csv of PyTorch's tests, a pair in 2 seconds; (PP/2-1)(F&B+B-3W)."""
    built = dualpipev(8, 10)
    assert paired_timeline(built, UNIT, pair=2.0).tolist() == [1.0, 2.0, 3.0, 3.0]
    assert simulate(built, 1.0, 2.0, overlapped=2.0).idle_per_device == (1.0, 2.0, 3.0, 3.0)
    assert peak_in_flight(built) == (9, 9, 9, 9)
    end = built.to_text().splitlines()[2].split(",")[-11:]
    assert end == ["5B7", "2B6", "5B8", "2I7", "5I9", "2I8", "2W7", "2I9", "5W9", "2W8", "2W9"]


def test_dualpipev_2_devices():
    """Written without PyTorch's brackets: + joins a pair."""
    rows = dualpipev(4, 4).to_text().replace("(", "").replace(")OVERLAP_F_B", "").replace(";", "+")
    assert rows.splitlines() == [
        "0F0,0F1,0F2,3F0,3I0,3W0,3F1,0F3+3B1,3F2+0B0,3B2,3F3+0B1,3B3,0I2,0W2,0I3,0W3",
        "1F0,2F0,1F1,2F1,1F2,2B0,2F2+1B0,1F3+2B1,2F3+1B1,2B2,1B2,2I3,1I3,2W3,1W3",
    ]


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_dualpipe_idles_as_its_table_says(p):
    """(PP/2 - 1)(F&B + B - 3W), for every even m from 2p on."""
    for m in range(2 * p, 3 * p + 1, 2):
        built = dualpipe(p, m)
        for pair in (2.5, 3.0):
            t = simulate(built, 1.0, 2.0, overlapped=pair)
            assert paired_timeline(built, UNIT, pair) == pytest.approx(np.array(t.idle_per_device))
            middle = t.idle_per_device[p // 2]
            assert middle == pytest.approx((p / 2 - 1) * (pair + 2 - 3))
        assert max(peak_in_flight(built)) == p + 1


def test_dualpipe_is_two_mirrored_halves():
    built = dualpipe(4, 8)
    assert built.places == ((0, 1, 2, 3), (3, 2, 1, 0))
    for device, mirror in ((0, 3), (1, 2)):
        other = [(a.kind, 3 - a.stage, a.microbatch ^ 1) for a in built.actions(mirror)]
        swapped = [(a.kind, 3 - a.stage, a.microbatch) for a in built.actions(device)]
        assert [k for k, _, _ in swapped] == [k for k, _, _ in other]
        assert [i for _, _, i in swapped] == [i for _, _, i in other]


@pytest.mark.parametrize("make", [dualpipe, dualpipev, chimera])
@pytest.mark.parametrize("p", [2, 4, 6])
def test_any_number_of_microbatches(make, p):
    for m in range(1, 3 * p + 2):
        built = validate(make(p, m), p, m)
        work = simulate(built, 1.0, 2.0).busy
        assert work == 3 * p * m
        assert Schedule.from_text(built.to_text()) == built


@pytest.mark.parametrize("make", [dualpipe, dualpipev])
def test_refuses_an_odd_number(make):
    with pytest.raises(ScheduleError, match="use 4 stages"):
        make(3, 4)


@pytest.mark.parametrize("p", range(1, 9))
def test_chimera(p):
    """(2m + p - 2) F with F = B (arXiv 2107.06925); between p/2 + 1 and p activations."""
    for m in range(1, 4 * p + 1):
        built = validate(chimera(p, m), memory_limit=p)
        if p % 2 == 0 == m % p:
            t = simulate(built, 1.0, 1.0)
            assert t.makespan == 2 * m + p - 2
            if m == p:
                assert (min(t.peak_in_flight), max(t.peak_in_flight)) == (p // 2 + 1, p)


def test_chimera_halves_the_bubble_of_1f1b_for_twice_the_weights():
    from tiledask.plan.pipelines.schedules import schedule

    p, m = 8, 16
    both = simulate(chimera(p, m), 1.0, 1.0), simulate(schedule("1f1b", p, m), 1.0, 1.0)
    assert both[0].idle_per_device[0] == (p - 2) < both[1].idle_per_device[0] / 2
    assert len(chimera(p, m).places) == 2
