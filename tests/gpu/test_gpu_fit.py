"""Does it fit: claims of the planner, run on the device at 1:10 and 1:1, beside what was held.

states        a real decoder's weights, gradients and optimizer states, and one optimizer step
a step        a decoder like GPT-2: a whole training step, in one stage, with recomputation, and in
              two stages that share the device
refused       the same with half of the memory that it needs: nothing may fit then

Measured is what our arrays held, to the byte, and what CuPy's pool of the worker grew by, which
has what kernels allocate for themselves too.
"""

import time
from dataclasses import replace

import pytest
from gpu.devices import LESS, memory_of, on

import tiledask as td
from tiledask.distributed.cluster.counters import counting
from tiledask.plan.data import names
from tiledask.plan.inputs.recipes import load_recipe, state_bytes

pytestmark = pytest.mark.cluster

RECIPE = "mixed-adam-16"
SHARE = 0.6
"""Of the device's memory, that a claim may take."""
DRAWN = 24 * 10**9
"""Bytes of states, at most: their numbers are drawn on the host."""
BYTES = sum(state_bytes(1, load_recipe(RECIPE), 0, 1).values())
SMALL = td.Model(64, layers=4, heads=4, ffn=256, vocab=640, learned_pos=1024, name="small gpt2")
LAYOUTS = {
    "": td.Layout(microbatches=2),
    ", recomputed": td.Layout(microbatches=2, recompute="full"),
    ", 2 stages": td.Layout(pp=2, microbatches=4),
}
STATES = [("states", 10, 0), ("states", 1, 0), ("refused", 10, 0)]
STEPS = [(how, 1, which) for which in (0, 1) for how in LAYOUTS]


def a_step(layout, which, memory, sequence):
    """The largest GPT-2 of which a step fits ``memory``; for 1 the next of an eighth of it.

    Without dropout, as `run_claim` executes them.
    """

    def fits(model, layout):
        peak = td.estimate_memory(model, layout, RECIPE, sequence).peak
        return layout.pp * peak <= SHARE * memory

    shipped = map(td.load_model, ("gpt2-xl", "gpt2-large", "gpt2-medium", "gpt2"))
    known = [*(replace(each, dropout=False) for each in shipped), SMALL]
    fitting = [model for model in known if fits(model, LAYOUTS[""])]
    if which:
        fitting = [m for m in fitting if 8 * m.parameters <= fitting[0].parameters]
    if not fitting or not fits(fitting[0], layout):
        pytest.skip("the device is too small for it")
    return fitting[0]


def states(scale, memory):
    """(name, parameters) of the largest shipped model whose states may be held."""
    most = min(SHARE * memory, DRAWN) * scale / BYTES
    sizes = {name: td.load_model(name).parameters for name in names("models")}
    name = max((each for each in sizes if sizes[each] <= most), key=sizes.__getitem__)
    return name, sizes[name]


@pytest.mark.parametrize(
    ("arrays", "what", "scale", "which"),
    on([*STATES, *STEPS], [*STATES[::2], *STEPS[:3]]),
)
def test_claims(note, on_workers, arrays, what, scale, which):
    memory = memory_of(arrays) if arrays == "cupy" else 3 * 10**8
    sequence, layout = max(64, 1024 // LESS[arrays]), LAYOUTS.get(what, td.Layout())
    if what in LAYOUTS:
        model, capacity = a_step(layout, which, memory, sequence), memory // layout.pp
        key, name = f"a step of {model.name}{what}", model.name
    else:
        key, model = states(scale, memory)
        capacity = model * BYTES // 2 if what == "refused" else memory * scale
        key = f"states of {key} at 1:{scale}{', refused' * (what == 'refused')}"
        name = f"{model:,} parameters"
    cluster = on_workers(arrays, layout.pp, layout.pp)
    how = {"recipe": RECIPE, "sequence": sequence, "scale": scale, "timeout": 120.0}
    begun = time.monotonic()
    with counting(cluster, 120.0) as counted:
        ran = td.run_claim(model, layout, capacity, cluster, **how)
    predicted, measured = ran.predicted, ran.measured
    right = ran.predicted_verdict == ran.executed_verdict and bool(ran.refused) == (
        what == "refused"
    )
    right = right and (what == "refused" or measured.per_place == ran.simulated.per_place)
    note(
        key,
        "right" if right else "wrong",
        why="" if right else str(ran),
        **{"model": name, "scale": scale, "layout": str(layout), "recipe": RECIPE},
        **{
            "sequence": sequence,
            "seconds": time.monotonic() - begun,
            "capacity bytes": ran.case.capacity,
        },
        **{"peak bytes, predicted": predicted.peak, "peak bytes": measured.peak},
        **{"pool bytes": max(counted.growth, default=None)},
        **{"verdict, predicted": ran.predicted_verdict, "verdict": ran.executed_verdict},
        **{"bytes by tensor, predicted": predicted.by_tensor(predicted.binding[0])},
        **{"bytes by tensor": measured.by_tensor(measured.binding[0])},
    )
    assert right, ran
