"""DualPipe and DualPipeV against DeepSeek's and PyTorch's programs; Chimera against its paper.

Holds `tiledask.plan.pipelines.generators.two_way`.
"""

import pytest

from tiledask.plan.pipelines.generators.two_way import chimera, dualpipe, dualpipev
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.simulate import simulate
from tiledask.plan.pipelines.validate import peak_in_flight, validate


def test_pairs_lose_the_overlap_that_f_and_b_alone_do_not():
    built = dualpipev(8, 10)
    alone = Schedule.of(built.orders, built.place)
    assert simulate(alone, 1.0, 2.0).makespan == simulate(built, 1.0, 2.0).makespan - 3  # p - 1


@pytest.mark.parametrize("p", [2, 4, 6, 8])
def test_dualpipe_idles_as_its_table_says(p):
    """(PP/2 - 1)(F&B + B - 3W), for every even m from 2p on."""
    for m in range(2 * p, 3 * p + 1, 2):
        built = dualpipe(p, m)
        for pair in (2.5, 3.0):
            t = simulate(built, 1.0, 2.0, overlapped=pair)
            assert t.idle_per_device[p // 2] == pytest.approx((p / 2 - 1) * (pair + 2 - 3))
        assert max(peak_in_flight(built)) == p + 1


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
