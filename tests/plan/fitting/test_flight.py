"""Micro-batches in flight: closed forms and counted states against the schedules themselves."""

import pytest

from tiledask.plan.fitting.activations import alive
from tiledask.plan.inputs.layout import SCHEDULES, Layout
from tiledask.plan.pipelines.schedules import BOTH_WAYS, V_SHAPED, is_looped, schedule
from tiledask.plan.pipelines.validate import peak_in_flight


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("m", [2, 4, 8, 14, 60])
def test_in_flight_is_what_the_schedule_holds(name, p, m):
    looped = is_looped(name) or name == "1f1b"
    v = 2 if looped or name in V_SHAPED else 1
    if name == "1f1b" and m % p:  # Megatron-LM's interleaved order takes multiples of p
        name, looped, v = "1f1b", False, 1
    layout = Layout(pp=p, microbatches=m, schedule=name, interleave=v)
    real = "interleaved" if name == "1f1b" and v > 1 else name
    built = schedule(real, p * v, m, **({"devices": p} if looped else {}))
    states = [alive(name, p, m, layout.interleave, stage) for stage in range(p)]
    assert tuple(max(map(sum, each)) for each in states) == peak_in_flight(built)
    for stage, each in enumerate(states):
        chunks = layout.stage_chunks(stage)
        assert all(len(state) == len(chunks) for state in each)
        if name not in BOTH_WAYS:
            assert [built.place[chunk] for chunk in chunks] == [stage] * v
