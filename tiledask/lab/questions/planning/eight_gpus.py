"""18. All states of a large model on one node: infeasible, and what would change that."""

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.puzzles.fields import whole
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Comparison
from tiledask.plan.fitting.fit import minimum_devices
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION"]

RECIPE = "mixed-adam-16"
LIGHTER = ("mixed-momentum", "mixed-adam-8bit", "bf16-adam", "bf16-adam-8bit", "fp16-sgd", "lora")
"""Recipes that keep less of each parameter, most first."""
LARGER = (94, 141, 192, 288)
"""GB of GPUs that there are."""


def slices(devices: int, **more: object) -> Layout:
    """One slice of each layer for every GPU of a node, of the layers beyond it."""
    tp = max(t for t in (1, 2, 4, 8) if devices % t == 0)
    return Layout(tp=tp, pp=devices // tp, **more)


def leanest(devices: int) -> Layout:
    """The same with all that saves activations."""
    return slices(devices, recompute="full", flash_attention=True, sequence_parallel=True)


def work(billions: float, memory: int, devices: int) -> WorkedAnswer:
    """Whether a node trains it, and which recipe, GPU or number of GPUs would."""
    n, room = sized.parameters(billions), format_bytes(memory)
    each = load_recipe(RECIPE).bytes_per_parameter
    whole, few = n * each, minimum_devices(n, RECIPE, memory)
    model, lean = sized.decoder(billions), leanest(devices)
    full = td.fits(model, lean, sized.machine(devices, memory), RECIPE)
    with_context, how = sized.counted(billions, memory)
    lines = [
        sized.convention(RECIPE),
        f"{billions:g}e9 parameters x {each} B = {format_bytes(whole)}; / {sized.gpus(devices)} = "
        f"{format_bytes(whole / devices)} a GPU of {room}: {sized.holds(whole / devices, memory)}, "
        f"as slices and as ZeRO-3 alike",
        f"fp16 weights alone: {format_bytes(2 * n)} / {devices} = {format_bytes(2 * n / devices)}",
        f"{format_bytes(whole)} / {room} = {whole / memory:.4g} -> {sized.gpus(few)} for the "
        f"states",
        how,
        f"with activations (all recomputed) and buffers too, as below: {sized.verdict(full)}",
    ]
    ways, verdicts = [], {}
    for name in LIGHTER:
        fit = td.fits(model, lean, sized.machine(devices, memory), name)
        verdicts[name] = fit.verdict
        lines.append(
            f"{name}, {load_recipe(name).bytes_per_parameter} B a parameter: {fit.verdict}, "
            f"{format_bytes(fit.expected)}"
        )
        if fit.verdict == "fits" and full.verdict != "fits":
            ways.append(name)
    for gb in LARGER:
        fit = td.fits(model, lean, sized.machine(devices, gb * 10**9), RECIPE)
        verdicts[f"{gb} GB"] = fit.verdict
    sizes = ", ".join(f"{gb} GB {verdicts[f'{gb} GB']}" for gb in LARGER)
    lines.append(f"larger GPUs for {format_bytes(full.expected)}: {sizes}")
    larger = next((gb for gb in LARGER if verdicts[f"{gb} GB"] == "fits"), None)
    fix = full.smallest_fix
    if fix is not None:
        lines.append(f"other layouts: {sized.brief(fix.layout)} on {sized.gpus(fix.devices)} fits")
    if full.verdict == "fits":
        answer = (
            f"It is feasible: {format_bytes(full.expected)} on each of {sized.gpus(devices)} of "
            f"{room}, of it {format_bytes(whole / devices)} states."
        )
    else:
        outs = [f"a lighter recipe ({', '.join(ways)})"] if ways else []
        outs += [f"GPUs of {larger} GB"] if larger and larger * 10**9 > memory else []
        if fix is not None:
            outs.append(f"{sized.gpus(fix.devices)} of this size, {sized.brief(fix.layout)}")
        answer = (
            f"{'Infeasible' if full.verdict == 'no' else 'Too tight'}: full fine-tuning takes "
            f"{format_bytes(whole / devices)} a GPU by its states alone, of {room}; they alone "
            f"need {sized.gpus(few)}{sized.beside(few, with_context)}. What would make it "
            f"feasible: {'; '.join(outs) or 'nothing of what was tried'}."
        )
    return WorkedAnswer(
        answer,
        tuple(lines),
        {
            "states_each": -(-n // devices) * each,
            "fewest_devices": few,
            "verdict": full.verdict,
            "other_verdicts": verdicts,
            "fix": None if fix is None else str(fix.layout),
        },
        lambda: sized.bars(
            billions,
            {name: (Layout(tp=devices), name) for name in (RECIPE, *LIGHTER[:-1])},
            memory,
        ),
    )


def run(cluster: Cluster, billions: float, memory: int, devices: int) -> Comparison:
    """States refused as they are, and held by what would make it feasible."""
    few = minimum_devices(sized.parameters(billions), RECIPE, memory)
    plans = {
        f"{devices} slices": (Layout(tp=devices), RECIPE, memory),
        f"ZeRO-3 on {devices}": (Layout(dp=devices, zero=3), RECIPE, memory),
        f"{devices} slices, fp16 weights": (Layout(tp=devices), "fp16-weights", memory),
        f"{devices} slices, bf16-adam": (Layout(tp=devices), "bf16-adam", memory),
        f"{few} slices": (Layout(tp=few), RECIPE, memory),
    }
    if few > 1:
        plans[f"{few - 1} slices"] = Layout(tp=few - 1), RECIPE, memory
    return sized.held(cluster, "What a node holds", billions, plans)


QUESTION = CourseQuestion(
    18,
    "Your team is training a {billions}B-parameter LLM on {devices} GPUs ...",
    "All {billions} billion parameters of a model are to be trained on {devices} GPUs of {memory}, "
    "with Adam in mixed precision. Is that feasible? If not, what would make it so?",
    {
        "billions": sized.size_of(70.0, 13.0),
        "memory": sized.memory_of("80GB", "141GB"),
        "devices": Input(8, 16, whole(1, 1024), "GPUs, 8 in a node"),
    },
    work,
    run,
    largest_run={"devices": 64},
)
