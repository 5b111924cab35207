"""26: d2l's network partitioning of its LeNet: what it says in words, in numbers and run.

device 1 conv1 --3.46 MB--> 2 conv2 --0.82--> 3 fc1 --0.13--> 4 fc2       and the same back
"""

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.puzzles.fields import whole
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Comparison
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION"]


def work(images: int, devices: int) -> WorkedAnswer:
    """d2l's four claims: memory, synchronisation, balance, transfers; a line of numbers each."""
    from tiledask.distributed.convolution.lenet import LENET
    from tiledask.plan.program.lenet import BOUNDARIES, PARAMETERS, stages_of
    from tiledask.plan.program.making.convolution.of_lenet import need

    stages, said = stages_of(devices), need("network", images, devices, 4)
    lines, crossed = ["weights and biases, fp32, 4 B each:"], []
    for device, (layers, held) in enumerate(zip(stages, said.parameters, strict=True), 1):
        names = " + ".join(f"{LENET[i].name} {LENET[i].size:,}" for i in layers)
        lines.append(
            f"device {device}: {names} = {held:,} of {PARAMETERS:,} = "
            f"{100 * held / PARAMETERS:.1f} %"
        )
    for device, layers in enumerate(stages[:-1], 1):
        last = BOUNDARIES[layers[-1]]
        size = images * last.units * last.each * 4
        crossed.append(size)
        lines.append(
            f"{last.name} -> device {device + 1}: {images} x {last.units} x {last.each} x 4 B = "
            f"{format_bytes(size)}, and its gradient back"
        )
    total = 2 * sum(crossed)
    lines += [
        f"transfers: 2 x ({devices} - 1) = {said.transfers}, in turn: each device waits for its "
        f"neighbour",
        f"bytes: 2 x ({' + '.join(map(format_bytes, crossed))}) = {format_bytes(total)}",
        "work: "
        + ", ".join(f"device {d} {f / 1e6:,.1f} MFLOP" for d, f in enumerate(said.flops, 1)),
        f"busiest over mean: {max(said.flops) / 1e6:,.1f} / {sum(said.flops) / devices / 1e6:,.1f} "
        f"= {said.imbalance:.3g}; even a pipeline would use at most {100 / said.imbalance:.0f} %",
    ]
    return WorkedAnswer(
        f"A device needs a fraction of the memory, at most "
        f"{100 * max(said.parameters) / PARAMETERS:.0f} %; neighbours wait for each other "
        f"{said.transfers} times a step; the busiest device has {said.imbalance:.2g} times the "
        f"mean work; {format_bytes(total)} of activations and gradients cross.",
        lines,
        {
            "parameters": list(said.parameters),
            "boundary bytes": crossed,
            "transfers": said.transfers,
            "bytes": sum(said.sent),
            "imbalance": said.imbalance,
        },
    )


def run(cluster: Cluster, images: int, devices: int) -> Comparison:
    """A training step of LeNet, consecutive layers on each worker."""
    from tiledask.lab.lenet import lenet_claims

    return lenet_claims(td.Mesh(cluster, (devices,)), images, ways=("network",))


QUESTION = CourseQuestion(
    number=26,
    title="Network Partitioning",
    asked="d2l's LeNet is spread over {devices} GPUs, consecutive layers on each, and trained on "
    "{images} images a step. How much memory does each need, how often do they wait for each "
    "other, how even is the work, and how much is transferred?",
    inputs={
        "images": Input(256, 128, whole(1, 10**6), "images of a step"),
        "devices": Input(4, 2, whole(2, 4), "devices, consecutive layers of its 4 on each"),
    },
    work=work,
    run=run,
    workers=lambda devices, **_: devices,
    largest_run={"images": 4096},
)
