"""14, 15 and 18: copies of a model that no GPU holds, or slices of it, and on how many GPUs."""

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.puzzles.fields import choice, whole
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Comparison
from tiledask.plan.fitting.fit import fits, minimum_devices, zero3_minimum_degree
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION_14", "QUESTION_15", "QUESTION_18"]

TRAINING = "mixed-adam-16"


def work_14(billions: float, memory: int, devices: int) -> WorkedAnswer:
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


def run_14(cluster: Cluster, billions: float, memory: int, devices: int) -> Comparison:
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


QUESTION_14 = CourseQuestion(
    14,
    "Choosing a Parallelism Strategy for a Large Model",
    "A model of {billions} billion parameters is to be trained on {devices} GPUs of {memory}. "
    "Set-up A keeps a copy "
    "of the model on every GPU and shares out the batch; set-up B shares out the model. Which one "
    "can start, and on how many GPUs?",
    {
        "billions": sized.size_of(200.0),
        "memory": sized.memory_of("40GB"),
        "devices": sized.devices_of(80, "GPUs of either set-up"),
    },
    work_14,
    run_14,
)
RUN = (1, 2, 4)
"""Numbers of workers that are run with enough memory to see the whole peak."""


def counts(enough: int) -> list[int]:
    """1, 2, 4, ... up to the first power of two that is enough."""
    return [2**k for k in range(max(1, enough - 1).bit_length() + 1)]


def work_15(billions: float, memory: int, recipe: str) -> WorkedAnswer:
    """Bytes of a GPU with copies and with slices, for 1, 2, 4, ... GPUs."""
    n, each = sized.parameters(billions), load_recipe(recipe).bytes_per_parameter
    whole, enough = n * each, minimum_devices(n, recipe, memory)
    trains = load_recipe(recipe).trains
    with_context, how = sized.counted(billions, memory, recipe)
    lines = [
        sized.convention(recipe),
        f"all of it: {billions:g}e9 x {each} B = {format_bytes(whole)}; a GPU has "
        f"{format_bytes(memory)}",
    ]
    slices = {count: -(-n // count) * each for count in counts(enough)}
    for count in sorted({*slices, enough}):
        held = -(-n // count) * each
        lines.append(
            f"N = {count}: a copy each {format_bytes(whole)}; a slice each {format_bytes(whole)} / "
            f"{count} = {format_bytes(held)}, {sized.holds(held, memory)}"
        )
    lines += [
        f"copies: {format_bytes(whole)} a GPU for every N, {sized.holds(whole, memory)}",
        f"slices: {format_bytes(whole)} / {format_bytes(memory)} -> N >= {enough}",
        how,
    ]
    if trains and enough > 1:
        wire = load_recipe(recipe).gradient_bytes
        ring = 2 * (enough - 1) * n * wire / enough
        lines.append(
            f"copies on N = {enough} GPUs would also send their fp{8 * wire} gradients in every "
            f"step: 2 (N-1)/N x {format_bytes(n * wire)} = {format_bytes(ring)} a GPU"
        )
    copies = (
        f"a copy, {format_bytes(whole)}, never fits {format_bytes(memory)}"
        if whole > memory
        else f"a copy, {format_bytes(whole)}, fits {format_bytes(memory)} on every GPU"
    )
    context = sized.beside(enough, with_context)
    return WorkedAnswer(
        f"A slice shrinks with the number of GPUs and a copy does not: {copies}; slices fit from "
        f"{sized.gpus(enough)} on{context}. Cutting buys memory, not speed: layer by "
        f"layer one GPU works at a time.",
        tuple(lines),
        {
            "copy_bytes": whole,
            "slice_bytes": list(slices.values()),
            "copies_fit": whole <= memory,
            "fewest_slices": enough,
        },
        lambda: sized.bars(
            billions,
            {
                f"{kind}, N = {count}": (Layout(**{degree: count}), recipe)
                for kind, degree in (("copies", "dp"), ("slices", "tp"))
                for count in counts(enough)[-3:]
            },
            memory,
        ),
    )


def run_15(cluster: Cluster, billions: float, memory: int, recipe: str) -> Comparison:
    """Copies and slices on 1, 2 and 4 workers: the one as large as before, the others smaller."""
    n = sized.parameters(billions)
    enough = minimum_devices(n, recipe, memory)
    free = n * load_recipe(recipe).bytes_per_parameter  # room for a copy, to the byte
    plans = {
        "one copy" if count == 1 else f"{count} copies": (Layout(dp=count), recipe, free)
        for count in RUN
    }
    plans |= {f"{count} slices": (Layout(pp=count), recipe, free) for count in RUN[1:]}
    plans["2 copies, capped"] = Layout(dp=2), recipe, memory
    plans[f"{enough} slices, capped"] = Layout(tp=enough), recipe, memory
    return sized.held(cluster, "Copies and slices as workers are added", billions, plans)


QUESTION_15 = CourseQuestion(
    15,
    "Rationale for Model Partitioning",
    "Why is a model of {billions} billion parameters ({recipe}) cut over GPUs of {memory}, and not "
    "copied to each? From "
    "how many GPUs on does either fit?",
    {
        "billions": sized.size_of(30.0),
        "memory": sized.memory_of("40GB"),
        "recipe": Input(
            "mixed-adam-16",
            choice((*sized.CONVENTIONS, "fp32-adam")),
            "what is kept of each parameter",
        ),
    },
    work_15,
    run_15,
)
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


def work_18(billions: float, memory: int, devices: int) -> WorkedAnswer:
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


def run_18(cluster: Cluster, billions: float, memory: int, devices: int) -> Comparison:
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


QUESTION_18 = CourseQuestion(
    18,
    "Your team is training a {billions}B-parameter LLM on {devices} GPUs ...",
    "All {billions} billion parameters of a model are to be trained on {devices} GPUs of {memory}, "
    "with Adam in mixed precision. Is that feasible? If not, what would make it so?",
    {
        "billions": sized.size_of(70.0),
        "memory": sized.memory_of("80GB"),
        "devices": Input(8, whole(1, 1024), "GPUs, 8 in a node"),
    },
    work_18,
    run_18,
    largest_run={"devices": 64},
)
