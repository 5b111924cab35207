"""DualPipe and DualPipeV against DeepSeek's and PyTorch's programs; Chimera against its paper.

Holds `tiledask.plan.pipelines.generators.two_way`.
"""

import pytest

from tiledask.errors import ScheduleError
from tiledask.plan.pipelines.generators.two_way import chimera, dualpipe, dualpipev
from tiledask.plan.pipelines.needs import peak_in_flight, validate
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.simulate import simulate


def test_pairs_lose_the_overlap_that_f_and_b_alone_do_not():
    built = dualpipev(8, 10)
    alone = Schedule.of(built.orders, built.place)
    assert simulate(alone, 1.0, 2.0).makespan == simulate(built, 1.0, 2.0).makespan - 3  # p - 1


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
            assert t.idle_per_device[p // 2] == pytest.approx((p / 2 - 1) * (pair + 2 - 3))
        assert max(peak_in_flight(built)) == p + 1


def test_dualpipe_is_two_mirrored_halves():
    built = dualpipe(4, 8)
    assert built.places == ((0, 1, 2, 3), (3, 2, 1, 0))
    for device, mirror in ((0, 3), (1, 2)):
        other = [(a.kind, 3 - a.stage, a.microbatch ^ 1) for a in built.actions(mirror)]
        swapped = [(a.kind, 3 - a.stage, a.microbatch) for a in built.actions(device)]
        assert [(k, i) for k, _, i in swapped] == [(k, i) for k, _, i in other]
    for make in (dualpipe, dualpipev):
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
