"""Claims about memory of four questions, each with the way out that arithmetic names."""

from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model

DECODER = Model(
    hidden=64, layers=4, heads=4, ffn=256, vocab=128, learned_pos=64, name="small decoder"
)
LAYER = 6_500_000_000
"""Parameters of 4 bytes that make 26 GB."""


def _pipeline(schedule, recompute="none"):
    layout = Layout(pp=2, microbatches=8, schedule=schedule, recompute=recompute)
    return {"what": DECODER, "layout": layout, "capacity": "3MB", "sequence": 64}


def _states(parameters, capacity, recipe, **layout):
    return {"what": parameters, "layout": Layout(**layout), "capacity": capacity, "recipe": recipe}


CASES = {
    "200 B parameters on 40 GB, run at 1:1000": {
        "full copies, fp16 weights": _states(200 * 10**9, "40GB", "fp16-weights", dp=10),
        "full copies, training": _states(200 * 10**9, "40GB", "mixed-adam-16", dp=160),
        "10 slices, fp16 weights": _states(200 * 10**9, "40GB", "fp16-weights", pp=10),
        "ZeRO-3 on 79": _states(200 * 10**9, "40GB", "mixed-adam-16", dp=79, zero=3),
        "ZeRO-3 on 80": _states(200 * 10**9, "40GB", "mixed-adam-16", dp=80, zero=3),
    },
    "A layer of 26 GB on 24 GB, run at 1:1000": {
        "whole": _states(LAYER, "24GB", "fp32-weights", dp=4),
        "tp 2, weights": _states(LAYER, "24GB", "fp32-weights", tp=2),
        "tp 4, SGD": _states(LAYER, "24GB", "fp32-sgd", tp=4),
        "tp 4, momentum": _states(LAYER, "24GB", "fp32-momentum", tp=4),
        "tp 4, Adam": _states(LAYER, "24GB", "fp32-adam", tp=4),
        "tp 5, Adam": _states(LAYER, "24GB", "fp32-adam", tp=5),
    },
    "30 B on 32 devices of 24 GB, pp 4 x tp 2 x dp 4, run at 1:1000": {
        name: _states(30 * 10**9, "24GB", "mixed-adam-16", pp=4, tp=2, dp=4, zero=zero)
        for zero, name in enumerate(("plain Adam", "ZeRO-1", "ZeRO-2", "ZeRO-3"))
    },
    "A decoder in 2 stages and 8 micro-batches on 3 MB": {
        "GPipe": _pipeline("gpipe"),
        "1F1B": _pipeline("1f1b"),
        "GPipe, recomputation": _pipeline("gpipe", "full"),
    },
}
"""Title -> name of a claim -> arguments of ``run_claim``."""
