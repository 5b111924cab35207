"""Part 3: 24 layers on 4 devices. The best cut, the wrong ones judged, both really run.

contiguous    [1-6][7-12][13-18][19-24]     3 crossings
round robin   1,5,9,... | 2,6,10,... | ...  23 crossings: the activations move at every layer
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

import tiledask as td
from tiledask.distributed.pipelines.run import PipelineRun
from tiledask.distributed.pipelines.stages import FeedForward, stack
from tiledask.lab import plots
from tiledask.lab.report import Section
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.pipelines.schedule import Action
from tiledask.plan.splitting.partition import contiguous_splits, count_contiguous_splits

__all__ = ["batch", "layers_on_devices", "run_layers"]

LAYERS, DEVICES = 24, 4
SHAPE = {"width": 256, "hidden": 1024, "seed": 24}
ROWS = 64

WRONG = {
    "round robin": [layer % DEVICES for layer in range(LAYERS)],
    "layer 13 left out": "1-6 | 7-12 | 14-18 | 19-24",
    "device 4 left idle": "1-8 | 9-16 | 17-24 | ",
    "halves swapped": "7-12 | 1-6 | 13-18 | 19-24",
}


def layers_on_devices(section: Section, cluster: Any) -> None:
    """Search every split, judge wrong answers, run the layers under both placements."""
    costs = [1.0] * LAYERS
    cut = td.partition(costs, DEVICES)
    splits = list(contiguous_splits(LAYERS, DEVICES))
    best = min(max(b - a for a, b in pairwise(s)) for s in splits)
    judged = {name: td.judge(answer, LAYERS, DEVICES) for name, answer in WRONG.items()}
    section.text(
        f"The best cut is `{cut}`. An answer is judged by rules and by the optimum:\n\n"
        + "\n".join(f"- *{name}*: **{v.rule}**. {v.reason}" for name, v in judged.items())
    )
    contiguous, robin = (run_layers(cluster, place) for place in (cut.place, WRONG["round robin"]))
    (alone,) = stack((0, LAYERS), FeedForward, **SHAPE)
    one = td.run_schedule(td.schedule("gpipe", 1, 1, forward_only=True), [alone], batch(), cluster)
    rows = [
        Claim(
            "contiguous splits into 4 non-empty parts",
            count_contiguous_splits(LAYERS, DEVICES),
            len(splits),
            unit="count",
            rule="equal",
            note="predicted: 23 choose 3; simulated: all of them listed",
        ),
        Claim(
            "layers on the fullest device",
            cut.bottleneck,
            float(best),
            rule="equal",
            note="predicted: the exact partition; simulated: the best of all splits",
        ),
        Claim(
            "crossings, contiguous",
            DEVICES - 1,
            td.judge(cut).crossings,
            contiguous.traffic.measured.count,
            rule="equal",
            note="measured: messages between workers",
        ),
        Claim(
            "crossings, round robin",
            LAYERS - 1,
            judged["round robin"].crossings,
            robin.traffic.measured.count,
            rule="equal",
        ),
        Claim(
            "bytes between workers, contiguous",
            (DEVICES - 1) * batch().nbytes,
            contiguous.traffic.predicted.total,
            contiguous.traffic.measured.total,
            "bytes",
            "equal",
        ),
        Claim(
            "wrong answers refused", len(WRONG), sum(not v for v in judged.values()), rule="equal"
        ),
        Claim(
            "output has the bits of one worker's: contiguous",
            None,
            None,
            contiguous.outputs.tobytes() == one.outputs.tobytes(),
            rule="true",
        ),
        Claim(
            "output has the bits of one worker's: round robin",
            None,
            None,
            robin.outputs.tobytes() == one.outputs.tobytes(),
            rule="true",
        ),
    ]
    section.table(Comparison("24 layers on 4 devices", rows))
    section.figure(
        plots.layers_on_devices({"contiguous": cut.place, "round robin": WRONG["round robin"]}),
        "layers",
        "Every red line is a transfer of the activations to another device.",
    )


def batch() -> np.ndarray:
    """What goes in: ROWS tokens of the layers' width, float32."""
    return np.random.default_rng(3).standard_normal((ROWS, SHAPE["width"]), np.float32)


def run_layers(cluster: Any, place: Sequence[int]) -> PipelineRun:
    """The run of one forward pass, a layer a stage, each on the device that ``place`` says."""
    orders = [
        [Action("F", layer, 0) for layer, where in enumerate(place) if where == device]
        for device in range(max(place) + 1)
    ]
    schedule = td.Schedule.of(orders, place, "layer by layer")
    return td.run_schedule(schedule, stack(range(len(place) + 1), **SHAPE), batch(), cluster)
