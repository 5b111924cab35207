"""Does it fit: claims of the planner, run on the device at 1:10 and 1:1, beside what was held.

states        a real decoder's weights, gradients and optimizer states, and one optimizer step
a step        a decoder like GPT-2: a whole training step, in one stage, with recomputation, and in
              two stages that share the device
refused       the same with half of the memory that it needs: nothing may fit then

Measured is what our arrays held, to the byte, and what CuPy's pool of the worker grew by, which
has what kernels allocate for themselves too.
"""

from dataclasses import replace

import pytest
from gpu.devices import LESS, memory_of, on

import tiledask as td
from tiledask.distributed.cluster.counters import counting
from tiledask.distributed.memory.claims import run_claim
from tiledask.plan.data import names
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import load_recipe, state_bytes

pytestmark = pytest.mark.cluster

RECIPE = "mixed-adam-16"
SHARE = 0.6
"""Of the device's memory, that a claim may take."""
DRAWN = 24 * 10**9
"""Bytes of states, at most: their numbers are drawn on the host."""
BYTES = sum(state_bytes(1, load_recipe(RECIPE), 0, 1).values())
SMALL = Model(hidden=64, layers=4, heads=4, ffn=256, vocab=640, learned_pos=1024, name="small gpt2")
LAYOUTS = {
    "": Layout(microbatches=2),
    ", recomputed": Layout(microbatches=2, recompute="full"),
    ", 2 stages": Layout(pp=2, microbatches=4),
}
STATES = [("states", 10, 0), ("states", 1, 0), ("refused", 10, 0)]
STEPS = [(how, 1, which) for which in (0, 1) for how in LAYOUTS]


def decoder(which, memory, sequence):
    """The largest GPT-2 of which a step fits ``memory``; for 1 the next of an eighth of it.

    Without dropout, as `run_claim` executes them.
    """
    names = ("gpt2-xl", "gpt2-large", "gpt2-medium", "gpt2")
    known = [*(replace(load_model(name), dropout=False) for name in names), SMALL]
    fitting = [model for model in known if peak(model, LAYOUTS[""], sequence) <= SHARE * memory]
    if which and fitting:
        fitting = [m for m in fitting[1:] if m.parameters <= fitting[0].parameters / 8]
    return fitting[0] if fitting else pytest.skip("the device is too small for it")


def peak(model, layout, sequence):
    return td.estimate_memory(model, layout, RECIPE, sequence).peak


def claimed(what, scale, which, memory, sequence):
    """(key, model or parameters, layout, capacity at 1:1) of a claim on a device of ``memory``."""
    if what in LAYOUTS:
        layout, model = LAYOUTS[what], decoder(which, memory, sequence)
        if layout.pp * peak(model, layout, sequence) > SHARE * memory:
            pytest.skip("the device is too small for it")
        return f"a step of {model.name}{what}", model, layout, memory // layout.pp
    most = int(min(SHARE * memory, DRAWN) * scale)
    sizes = {name: load_model(name).parameters for name in names("models")}
    fitting = {name: n for name, n in sizes.items() if n * BYTES <= most}
    name = max(fitting, key=fitting.__getitem__)
    key, half = f"states of {name} at 1:{scale}", sizes[name] * BYTES // 2
    if what == "refused":
        return f"{key}, refused", sizes[name], Layout(), half
    return key, sizes[name], Layout(), memory * scale


@pytest.mark.parametrize(
    ("arrays", "what", "scale", "which"),
    on([*STATES, *STEPS], [*STATES[::2], *STEPS[:3]]),
)
def test_claims(note, on_workers, arrays, what, scale, which):
    memory = memory_of(arrays) if arrays == "cupy" else 3 * 10**8
    sequence = max(64, 1024 // LESS[arrays])
    key, model, layout, capacity = claimed(what, scale, which, memory, sequence)
    cluster = on_workers(arrays, layout.pp, layout.pp)
    how = {"recipe": RECIPE, "sequence": sequence, "scale": scale, "timeout": 120.0}
    with counting(cluster, 120.0) as counted:
        ran = run_claim(model, layout, capacity, cluster, **how)
    name = model.name if isinstance(model, Model) else f"{model:,} parameters"
    predicted, measured = ran.predicted, ran.measured
    note(
        key,
        "right" if ran.agrees else "wrong",
        why="" if ran.agrees else str(ran),
        **{"model": name, "scale": scale, "layout": str(layout), "recipe": RECIPE},
        **{"sequence": sequence, "seconds": ran.seconds, "capacity bytes": ran.case.capacity},
        **{"peak bytes, predicted": predicted.peak, "peak bytes": measured.peak},
        **{"pool bytes": max(counted.growth, default=None), "ratio": ran.ratio},
        **{"verdict, predicted": ran.predicted_verdict, "verdict": ran.executed_verdict},
        **{"bytes by tensor, predicted": predicted.by_tensor(predicted.binding[0])},
        **{"bytes by tensor": measured.by_tensor(measured.binding[0])},
    )
    assert ran.agrees, ran
    assert ran.refused if what == "refused" else measured.per_place == ran.simulated.per_place
