"""Trainings on GPU workers: the host's losses, tokens a second.

LeNet, GPT     a few steps in float64 on one rank and on two, each way of splitting: the losses of
               the same training in NumPy
large GPT      in bfloat16: seconds a step, tokens a second, a share of the device's peak
"""

import time
from statistics import median

import numpy as np
import pytest
from gpu.devices import GPU, LESS, device_at_hand, on

import tiledask as td
from tiledask.tile.optimizers import SGD

pytestmark = pytest.mark.cluster

LIMIT = 1e-9
"""Relative difference of float64 losses after some steps, in sums of another order."""
SPLITS = [{}, {"data parallel": 2}, {"network": 2}, {"layerwise": 2}, {"space": 2}]
SHAPES = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)]
CASES = [
    *(("LeNet", each) for each in SPLITS[:1]),
    *(("GPT", each) for each in SHAPES),
    *(("LeNet", each) for each in SPLITS[1:]),
]
"""Those on one worker first."""


def digits(split, mesh, large):
    """A LeNet trained on digits."""
    how = {"steps": 4 if large else 2, "batch": 32 if large else 8, "dtype": "float64"}
    return td.train_lenet(
        td.load_images("digits"), split, mesh, rule=SGD(0.1, momentum=0.9), timeout=80.0, **how
    )


def tales(shape, mesh, large):
    """A small GPT trained on text."""
    text, width = td.load_text("tales"), 64 if large else 16
    model = td.GPT(text.vocabulary, hidden=width, layers=4, heads=4, sequence=width // 2)
    how = {"steps": 4 if large else 2, "batch": 8, "microbatches": 2, "dtype": "float64"}
    rule = SGD(0.1, momentum=0.9)
    return td.train(model, text, mesh, rule=rule, progress=False, timeout=80.0, **how)


@pytest.mark.parametrize(("arrays", "what", "split"), on(CASES, CASES), ids=str)
def test_losses_are_those_of_the_host(note, on_workers, arrays, what, split):
    shape = split if what == "GPT" else (2 if split else 1,)
    ranks, large = int(np.prod(shape)), arrays == "cupy"
    mesh = td.Mesh(on_workers(arrays, ranks), shape)
    begun = time.monotonic()
    if what == "GPT":
        key = f"GPT, dp {shape[0]}, tp {shape[1]}, pp {shape[2]}"
        got, took = tales(shape, mesh, large).losses, time.monotonic() - begun
        host = tales(shape, (1, 1, 1), large).losses
    else:
        key = f"LeNet, {', '.join(split) or 'one rank'}, {ranks} worker{'s' * (ranks > 1)}"
        got, took = digits(split, mesh, large).losses, time.monotonic() - begun
        host = digits({}, None, large).losses
    error = float(np.max(abs(got / host - 1)))
    why = f"losses {got.tolist()}, on the host {host.tolist()}" if error > LIMIT else ""
    facts = {"ranks": ranks, "seconds": took, "losses": got.tolist()}
    note(key, "wrong" if why else "right", why=why, error=error, limit=LIMIT, **facts)
    assert not why


@pytest.mark.parametrize("arrays", ["numpy", pytest.param("cupy", marks=GPU)])
def test_speed_of_a_large_gpt(note, on_workers, arrays):
    """The median of the last steps: the first ones load kernels."""
    less, text = LESS[arrays], td.load_text("tales")
    batch, steps = (8, 10) if less == 1 else (2, 4)
    model = td.GPT(
        text.vocabulary,
        hidden=max(64, 2048 // less),
        layers=12 if less == 1 else 2,
        heads=16,
        sequence=max(32, 1024 // less),
        gated=True,
    )
    done = []
    made = td.train(
        *(model, text, td.Mesh(on_workers(arrays, 1), (1, 1, 1))),
        **{"steps": steps, "batch": batch, "dtype": "bfloat16", "timeout": 140.0},
        progress=done.append,
    )
    step = median(each.seconds for each in done[steps // 2 :])
    tokens = batch * model.sequence
    flops = 6 * model.size * tokens / step
    device = device_at_hand() if arrays == "cupy" else None
    peak = device and dict(device.peak_flops).get("bf16")
    finite = bool(np.isfinite(made.losses).all())
    note(
        f"GPT of {model.size:,} parameters, bfloat16",
        "timed" if finite else "wrong",
        **{"parameters": model.size, "precision": "bf16", "seconds": step},
        **{"tokens/s": tokens / step, "FLOP/s": flops, "losses": made.losses.tolist()},
        **{"share of peak": peak and flops / peak, "bytes held": made.held[0]},
    )
    assert finite
