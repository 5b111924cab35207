"""14. Copies of a model that no GPU holds, or slices of it: what each keeps, and what raises."""

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.question import CourseQuestion, WorkedAnswer
from tiledask.lab.table import Comparison
from tiledask.plan.fitting.fit import fits, minimum_devices, zero3_minimum_degree
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION"]

TRAINING = "mixed-adam-16"


def work(billions: float, memory: int, devices: int) -> WorkedAnswer:
    """Fewest GPUs by every convention, what a copy and a slice keep, and what fits in the end."""
    n, room = sized.parameters(billions), format_bytes(memory)
    fewest = {name: minimum_devices(n, name, memory) for name in sized.CONVENTIONS}
    whole = n * load_recipe(TRAINING).bytes_per_parameter
    degree = zero3_minimum_degree(n, TRAINING, memory)
    fails, few, slice_ = whole > memory, fewest[TRAINING], -(-whole // devices)
    with_context, how = sized.counted(billions, memory)
    lines = [
        sized.convention(TRAINING),
        f"all of it: {billions:g}e9 x 16 B = {format_bytes(whole)}",
        f"A, a copy on each of {devices} GPUs: {format_bytes(whole)}, {whole / memory:.4g} times "
        f"its {room}, however many GPUs there are",
        f"B, split over {devices} GPUs: {format_bytes(whole)} / {devices} = {format_bytes(slice_)} "
        f"a GPU, {sized.holds(slice_, memory)}",
        f"fewest GPUs for B: {format_bytes(whole)} / {room} = {whole / memory:.4g} -> {few}; A "
        f"with ZeRO-3, {format_bytes(whole)} / d <= {room}, from d = {degree} on",
        "fewest by what is kept of a parameter: "
        + ", ".join(
            f"{load_recipe(name).bytes_per_parameter} B ({name}) {count}"
            for name, count in fewest.items()
        ),
        how,
    ]
    start = fits(
        sized.decoder(billions),
        Layout(dp=devices, flash_attention=True),
        sized.machine(devices, memory),
    )
    fix = start.smallest_fix
    if fix is not None:
        lines.append(
            f"with activations of a sequence of 2048 and buffers too: {sized.gpus(fix.devices)} "
            f"will do, {sized.brief(fix.layout)}"
        )
    starts = "cannot start" if fails else "starts"
    if not fails and with_context != 1:
        starts = "has room for its states, and none for a CUDA context beside them"
    short = "" if few <= devices else f"; {devices} are too few"
    again = f" ZeRO-3 does the same with data parallelism, from {degree} copies on."
    answer = (
        f"{'B' if fails else 'Either'}: A keeps {format_bytes(whole)} on every GPU of {room} and "
        f"{starts}. B keeps 1/N of it: the training states take "
        f"{sized.gpus(few)}{sized.beside(few, with_context)}, the half-precision weights alone "
        f"{fewest['fp16-weights']}{short}.{again * (degree > 1)}"
    )
    return WorkedAnswer(
        answer,
        tuple(lines),
        {
            "fewest": fewest,
            "zero3_degree": degree,
            "copy_bytes": whole,
            "slice_bytes": slice_,
            "fewest_with_context": with_context,
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
    "A model of {billions} billion parameters is to be trained on {devices} GPUs of {memory}. "
    "Set-up A keeps a copy "
    "of the model on every GPU and shares out the batch; set-up B shares out the model. Which one "
    "can start, and on how many GPUs?",
    {
        "billions": sized.size_of(200.0, 70.0),
        "memory": sized.memory_of("40GB", "80GB"),
        "devices": sized.devices_of(80, 16, "GPUs of either set-up"),
    },
    work,
    run,
)
