"""Trainings on GPU workers: the host's losses, tokens a second.

LeNet, GPT     a few steps in float64 on one rank and on two, each way of splitting: the losses of
               the same training in NumPy
large GPT      in bfloat16: seconds a step, tokens a second, a share of the device's peak
"""

import time
from math import prod

import numpy as np
import pytest
from gpu.devices import LESS, device_at_hand, on

import tiledask as td
from tiledask.tile.optimizers import SGD

pytestmark = pytest.mark.cluster

LIMIT = 1e-9
"""Relative difference of float64 losses after some steps, in sums of another order."""
SPLITS = ("data parallel", "network", "layerwise", "space")
CASES = [
    ("LeNet", (1,), ""),
    *(("GPT", shape, "") for shape in ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2))),
    *(("LeNet", (2,), split) for split in SPLITS),
]
"""Those on one worker first."""


def losses(what, where, split, large):
    """Of a LeNet trained on digits, or of a small GPT trained on text."""
    how = {"rule": SGD(0.1, momentum=0.9), "dtype": "float64", "timeout": 80.0}
    how["steps"] = 4 if large else 2
    if what == "LeNet":
        parts, batch = {split: 2} if split else {}, 32 if large else 8
        return td.train_lenet(td.load_images("digits"), parts, where, batch=batch, **how).losses
    text, width = td.load_text("tales"), 64 if large else 16
    model = td.GPT(text.vocabulary, hidden=width, layers=4, heads=4, sequence=width // 2)
    return td.train(model, text, where, batch=8, microbatches=2, progress=False, **how).losses


@pytest.mark.parametrize(("arrays", "what", "shape", "split"), on(CASES, CASES), ids=str)
def test_losses_are_those_of_the_host(note, on_workers, arrays, what, shape, split):
    ranks, large = prod(shape), arrays == "cupy"
    mesh = td.Mesh(on_workers(arrays, ranks), shape)
    begun = time.monotonic()
    got, took = losses(what, mesh, split, large), time.monotonic() - begun
    host = losses(what, (1, 1, 1) if what == "GPT" else None, "", large)
    key = f"LeNet, {split or 'one rank'}, {ranks} worker{'s' * (ranks > 1)}"
    if what == "GPT":
        key = "GPT, dp {}, tp {}, pp {}".format(*shape)
    error = float(np.max(abs(got / host - 1)))
    why = f"losses {got.tolist()}, on the host {host.tolist()}" if error > LIMIT else ""
    facts = {"ranks": ranks, "seconds": took, "losses": got.tolist()}
    note(key, "wrong" if why else "right", why=why, error=error, limit=LIMIT, **facts)
    assert not why


@pytest.mark.parametrize("arrays", on([()], [()]))
def test_speed_of_a_large_gpt(note, on_workers, arrays):
    """Of twice as many steps, how much longer they take: the first training loads kernels."""
    less, text, took = LESS[arrays], td.load_text("tales"), []
    batch, steps, layers = (8, 10, 12) if less == 1 else (2, 4, 2)
    hidden, sequence = max(64, 2048 // less), max(32, 1024 // less)
    model = td.GPT(text.vocabulary, hidden, layers, heads=16, sequence=sequence, gated=True)
    mesh = td.Mesh(on_workers(arrays, 1), (1, 1, 1))
    how = {"batch": batch, "dtype": "bfloat16", "progress": False, "timeout": 140.0}
    for n in (steps // 2, steps // 2, steps):
        begun = time.monotonic()
        made = td.train(model, text, mesh, steps=n, **how)
        took.append(time.monotonic() - begun)
    step = (took[-1] - took[-2]) / (steps - steps // 2)
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
