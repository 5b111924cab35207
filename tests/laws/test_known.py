"""Every formula equals the simulation wherever it says that it holds."""

from itertools import product

import pytest

from tiledask.plan.pipelines.known import known_makespan
from tiledask.plan.pipelines.schedules import V_SHAPED, is_looped, schedule, schedules
from tiledask.plan.pipelines.simulate import simulate

TIMES = [(1, 1, 1), (2, 2, 1), (3, 4, 2), (1, 0.5, 0.5)]


def cases(name):
    even = name in V_SHAPED
    chunks = (2,) if even else (1, 2, 3) if is_looped(name) else (1,)
    for p, m, v in product((1, 2, 4, 5), (1, 4, 8, 15), chunks):
        if name == "dualpipe" and p % 2:
            continue
        s = schedule(name, p * v, m, **({"devices": p} if is_looped(name) else {}))
        yield from ((s, v, times, c) for times, c in product(TIMES, (0, 0.25)))


@pytest.mark.parametrize("name", schedules)
def test_formula_and_simulation_agree(name):
    known = 0
    for s, v, (F, I, W), c in cases(name):
        for both in (None, 0.9 * (F + I + W)) if s.paired.any() else (None,):
            if both is not None and both < max(F, I + W):
                continue
            got = known_makespan(
                name, s.devices, s.microbatches, F, I, W, c, chunks=v, overlapped=both
            )
            if got is None:
                continue
            t = simulate(s, F, backward_input=I, backward_weight=W, latency=c, overlapped=both)
            assert t.makespan == pytest.approx(got.seconds), (s, v, F, I, W, c, both, got)
            assert got.source
            known += 1
    none = ("zb-auto", "interleaved-zb", "v-half", "v-min")
    assert (known == 0) == (name in none), f"known.py has a formula for {name}, or none names it"
    assert known > 5 or name in none
