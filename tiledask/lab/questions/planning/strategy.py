"""14. Copies of a model that no GPU holds, or slices of it: what each keeps, and what raises."""

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.question import CourseQuestion, WorkedAnswer
from tiledask.lab.table import Comparison
from tiledask.plan.choosing.question_check import Critique
from tiledask.plan.fitting.fit import fits, minimum_devices, zero3_minimum_degree
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION"]

TRAINING = "mixed-adam-16"


def work(billions: float, memory: int, devices: int) -> WorkedAnswer:
    """Fewest GPUs by every convention, what a copy and a slice keep, and what fits in the end."""
    n, room = sized.parameters(billions), format_bytes(memory)
    fewest, lines = {}, []
    for name in sized.CONVENTIONS:
        each = load_recipe(name).bytes_per_parameter
        fewest[name] = minimum_devices(n, name, memory)
        lines.append(
            f"{name}: {billions:g}e9 parameters x {each} B = {format_bytes(n * each)}; / {room} = "
            f"{n * each / memory:.4g} -> {fewest[name]} GPUs at least"
        )
    whole = n * load_recipe(TRAINING).bytes_per_parameter
    degree = zero3_minimum_degree(n, TRAINING, memory)
    fails = whole > memory
    lines += [
        f"A, data parallel on {devices} GPUs: each keeps all {format_bytes(whole)}, "
        f"{whole / memory:.4g} times its memory, however many GPUs there are",
        f"B, split over {devices} GPUs: {format_bytes(whole)} / {devices} = "
        f"{format_bytes(whole / devices)} a GPU",
        f"A with ZeRO-3: {format_bytes(whole)} / d <= {room} needs d >= {degree}",
    ]
    model = sized.decoder(billions)
    start = fits(model, Layout(dp=devices, flash_attention=True), sized.machine(devices, memory))
    fix = start.smallest_fix
    if fix is not None:
        lines.append(f"With activations of one sequence of 2048 and a run's overhead: {fix}")
    split = whole / devices <= memory
    answer = (
        f"{'B' if fails else 'Either'}: A keeps {format_bytes(whole)} on every GPU of {room} and "
        f"{'cannot start' if fails else 'starts'}; slices of the model hold 1/N of it, so that "
        f"{fewest[TRAINING]} GPUs hold the training states"
        f"{'' if split else f', more than the {devices} at hand'}, and {fewest['fp16-weights']} "
        f"the half-precision weights alone. ZeRO-3 does it with data parallelism, from "
        f"{degree} GPUs on."
    )
    return WorkedAnswer(
        answer,
        tuple(lines),
        {
            "fewest": fewest,
            "zero3_degree": degree,
            "copy_bytes": whole,
            "slice_bytes": -(-whole // devices),
            "copies_fit": not fails,
            "fitting_layout": None if fix is None else str(fix.layout),
        },
        lambda: sized.bars(
            billions,
            {
                "A": (Layout(dp=devices), TRAINING),
                "A, ZeRO-3": (Layout(dp=devices, zero=3), TRAINING),
                "B": (Layout(tp=devices), TRAINING),
                "B, fp16 weights": (Layout(tp=devices), "fp16-weights"),
            },
            memory,
        ),
    )


def premise(billions: float, memory: int, devices: int) -> Critique:
    """A copy is too large, slices fit: at the numbers of GPUs that are asked for."""
    weights = minimum_devices(sized.parameters(billions), "fp16-weights", memory)
    most = max(devices, weights)
    return sized.premise_of(
        f"{billions:g} billion parameters on GPUs of {format_bytes(memory)}",
        billions,
        memory,
        most,
        {
            "A": {"dp": devices},
            "weights": {"pp": weights, "recipe": "fp16-weights"},
            "few": {"pp": weights},
            "B": {"pp": devices},
        },
        [
            sized.fits_claim("Data parallelism runs out of memory", "A", "too large"),
            sized.fits_claim(f"{weights} GPUs hold the weights in half precision", "weights"),
            sized.fits_claim(f"{weights} GPUs train it", "few"),
            sized.fits_claim(f"{devices} slices train it", "B"),
        ],
    )


def run(cluster: Cluster, billions: float, memory: int, devices: int) -> Comparison:
    """Copies refused, slices and ZeRO-3 held, and one GPU fewer refused."""
    n = sized.parameters(billions)
    few = minimum_devices(n, "fp16-weights", memory)
    degree = zero3_minimum_degree(n, TRAINING, memory)
    plans = {
        f"A, {devices} copies, fp16 weights": (Layout(dp=devices), "fp16-weights", memory),
        f"A, {devices} copies, training": (Layout(dp=devices), TRAINING, memory),
        f"B, {few} slices, fp16 weights": (Layout(pp=few), "fp16-weights", memory),
        f"B, {few} slices, training": (Layout(tp=few), TRAINING, memory),
        f"B, {devices} slices, training": (Layout(tp=devices), TRAINING, memory),
        f"A, ZeRO-3 on {degree}": (Layout(dp=degree, zero=3), TRAINING, memory),
    }
    if few > 1:
        plans[f"B, {few - 1} slices, fp16 weights"] = Layout(tp=few - 1), "fp16-weights", memory
    if degree > 1:
        plans[f"A, ZeRO-3 on {degree - 1}"] = Layout(dp=degree - 1, zero=3), TRAINING, memory
    return sized.held(cluster, "Copies and slices", billions, plans)


QUESTION = CourseQuestion(
    14,
    "Choosing a Parallelism Strategy for a Large Model",
    "A model of 200 billion parameters is to be trained on 80 GPUs of 40 GB. Set-up A keeps a copy "
    "of the model on every GPU and shares out the batch; set-up B shares out the model. Which one "
    "can start, and on how many GPUs?",
    {
        "billions": sized.size_of(200.0, 70.0),
        "memory": sized.memory_of("40GB", "80GB"),
        "devices": sized.devices_of(80, 16, "GPUs of either set-up"),
    },
    work,
    run,
    premise=premise,
)
