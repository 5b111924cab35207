"""14, 15 and 18: copies of a model that no GPU holds, or slices of it, and on how many GPUs."""

from typing import Any

import tiledask as td
from tiledask.lab.questions.question import Input, WorkedAnswer, question
from tiledask.lab.questions.shares import count
from tiledask.lab.questions.worked import runs, sizes
from tiledask.lab.questions.worked.sizes import ADAM, BILLIONS, GB, MEMORY, brief, holds
from tiledask.plan.fitting.fit import Fit, minimum_devices, zero3_minimum_degree
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.units import format_bytes


@question(
    14,
    "Choosing a Parallelism Strategy for a Large Model",
    "A model of {billions} billion parameters is to be trained on {devices} GPUs of {memory}. "
    "Set-up A keeps a copy of the model on every GPU and shares out the batch; set-up B shares out "
    "the model. Which one can start, and on how many GPUs?",
    billions=BILLIONS,
    memory=MEMORY,
    devices=Input("GPUs of either set-up", 1, 4096),
)
def copies_or_slices(
    billions: float = 200.0, memory: int = 40 * GB, devices: int = 80
) -> WorkedAnswer:
    """Fewest GPUs by every convention, what a copy and a slice keep, and what fits in the end."""
    n, room = sizes.parameters(billions), format_bytes(memory)
    fewest = {name: minimum_devices(n, name, memory) for name in sizes.CONVENTIONS}
    whole, degree = n * load_recipe(ADAM).bytes_per_parameter, zero3_minimum_degree(n, ADAM, memory)
    fails, few, part = whole > memory, fewest[ADAM], -(-whole // devices)
    more, how, context = sizes.with_context(billions, memory, few)
    by = {name: load_recipe(name).bytes_per_parameter for name in fewest}
    fix = td.fits(
        sizes.decoder(billions),
        Layout(dp=devices, flash_attention=True),
        sizes.machine(devices, memory),
    ).smallest_fix
    lines = [
        sizes.convention(),
        f"A, a copy on each of {devices} GPUs: {billions:g}e9 x 16 B = {format_bytes(whole)}, "
        f"{whole / memory:.4g} times its {room}, however many GPUs there are",
        f"B, split over {devices} GPUs: {format_bytes(whole)} / {devices} = {format_bytes(part)} a "
        f"GPU, {holds(part, memory)}",
        f"fewest GPUs for B: {format_bytes(whole)} / {room} = {whole / memory:.4g} -> {few}; A "
        f"with ZeRO-3, {format_bytes(whole)} / d <= {room}, from d = {degree} on",
        "fewest by what is kept of a parameter: "
        + ", ".join(f"{by[name]} B ({name}) {least}" for name, least in fewest.items()),
        how,
    ]
    if fix:
        lines.append(
            f"with activations of a sequence of 2048 and buffers too: {count(fix.devices, 'GPU')} "
            f"will do, {brief(fix.layout)}"
        )
    starts = "cannot start" if fails else "starts"
    if not fails and more != 1:
        starts = "has room for its states, and none for a CUDA context beside them"
    weights = fewest["fp16-weights"]
    slices = {
        f"A, {devices} copies, fp16 weights": (Layout(dp=devices), "fp16-weights"),
        f"A, {devices} copies, training": (Layout(dp=devices), ADAM),
        f"A, ZeRO-3 on {degree}": (Layout(dp=degree, zero=3), ADAM),
        f"B, {weights} slices, fp16 weights": (Layout(pp=weights), "fp16-weights"),
        f"B, {devices} slices, training": (Layout(tp=devices), ADAM),
    }
    if weights > 1:
        slices[f"B, {weights - 1} slices, fp16 weights"] = Layout(tp=weights - 1), "fp16-weights"
    if degree > 1:
        slices[f"A, ZeRO-3 on {degree - 1}"] = Layout(dp=degree - 1, zero=3), ADAM
    return WorkedAnswer(
        f"{'B' if fails else 'Either'}: A keeps {format_bytes(whole)} on every GPU of {room} and "
        f"{starts}. B keeps 1/N of it: the training states take {count(few, 'GPU')}{context}, the "
        f"half-precision weights alone {weights}"
        + f"; {devices} are too few" * (few > devices)
        + "."
        + f" ZeRO-3 does the same with data parallelism, from {degree} copies on." * (degree > 1),
        lines,
        {
            "fewest": fewest,
            "zero3_degree": degree,
            "copy_bytes": whole,
            "slice_bytes": part,
            "fewest_with_context": more,
            "copies_fit": not fails,
            "fitting_layout": fix and str(fix.layout),
        },
        lambda cluster: runs.held(cluster, "Copies and slices", n, runs.under(slices, memory)),
        figure=lambda: sizes.bars(billions, slices, memory),
    )


@question(
    15,
    "Rationale for Model Partitioning",
    "Why is a model of {billions} billion parameters ({recipe}) cut over GPUs of {memory}, and not "
    "copied to each? From how many GPUs on does either fit?",
    billions=BILLIONS,
    memory=MEMORY,
    recipe=Input("what is kept of each parameter", choices=(*sizes.CONVENTIONS, "fp32-adam")),
)
def why_cut(billions: float = 30.0, memory: int = 40 * GB, recipe: str = ADAM) -> WorkedAnswer:
    """Bytes of a GPU with copies and with slices, for 1, 2, 4, ... GPUs."""
    n, kept, room = sizes.parameters(billions), load_recipe(recipe), format_bytes(memory)
    each, whole = kept.bytes_per_parameter, n * kept.bytes_per_parameter
    enough, size = minimum_devices(n, recipe, memory), format_bytes(whole)
    _, how, context = sizes.with_context(billions, memory, enough, recipe)
    # 1, 2, 4, ... up to the first power of two that is enough
    slices = {2**i: -(-n // 2**i) * each for i in range(max(1, enough - 1).bit_length() + 1)}
    lines = [
        sizes.convention(recipe),
        f"copies: {billions:g}e9 x {each} B = {size} a GPU for every N, {holds(whole, memory)}",
        *(
            f"N = {N}: a slice each {size} / {N} = {format_bytes(-(-n // N) * each)}, "
            f"{holds(-(-n // N) * each, memory)}"
            for N in sorted({*slices, enough})
        ),
        f"slices: {size} / {room} -> N >= {enough}",
        how,
    ]
    if kept.trains and enough > 1:
        wire = kept.gradient_bytes
        ring = format_bytes(2 * (enough - 1) * n * wire / enough)
        lines.append(
            f"copies on N = {enough} GPUs would also send their fp{8 * wire} gradients in every "
            f"step: 2 (N-1)/N x {format_bytes(n * wire)} = {ring} a GPU"
        )
    fits = f"never fits {room}" if whole > memory else f"fits {room} on every GPU"
    plans = {
        **{f"{N} copies": (Layout(dp=N), recipe, int(whole)) for N in (1, 2, 4)},  # to the byte
        **{f"{N} slices": (Layout(pp=N), recipe, int(whole)) for N in (2, 4)},
        "2 copies, capped": (Layout(dp=2), recipe, memory),
        f"{enough} slices, capped": (Layout(tp=enough), recipe, memory),
    }
    shown = {
        f"{kind}, N = {N}": (Layout(**{degree: N}), recipe)
        for kind, degree in (("copies", "dp"), ("slices", "tp"))
        for N in [*slices][-3:]
    }
    return WorkedAnswer(
        f"A slice shrinks with the number of GPUs and a copy does not: a copy, {size}, {fits}; "
        f"slices fit from {count(enough, 'GPU')} on{context}. Cutting buys memory, not speed: "
        f"layer by layer one GPU works at a time.",
        lines,
        {
            "copy_bytes": whole,
            "slice_bytes": [*slices.values()],
            "copies_fit": whole <= memory,
            "fewest_slices": enough,
        },
        lambda cluster: runs.held(cluster, "Copies and slices as workers are added", n, plans),
        figure=lambda: sizes.bars(billions, shown, memory),
    )


LIGHTER = ("mixed-momentum", "mixed-adam-8bit", "bf16-adam", "bf16-adam-8bit", "fp16-sgd", "lora")
"""Recipes that keep less of each parameter, most first."""
LARGER = (94, 141, 192, 288)
"""GB of GPUs that there are."""


@question(
    18,
    "Your team is training a {billions}B-parameter LLM on {devices} GPUs ...",
    "All {billions} billion parameters of a model are to be trained on {devices} GPUs of {memory}, "
    "with Adam in mixed precision. Is that feasible? If not, what would make it so?",
    billions=BILLIONS,
    memory=MEMORY,
    devices=Input("GPUs, 8 in a node", 1, 1024, run=64),
)
def feasible(billions: float = 70.0, memory: int = 80 * GB, devices: int = 8) -> WorkedAnswer:
    """Whether a node trains it, and which recipe, GPU or number of GPUs would."""
    n, room, gpus = sizes.parameters(billions), format_bytes(memory), count(devices, "GPU")
    each = load_recipe(ADAM).bytes_per_parameter
    whole, few = n * each, minimum_devices(n, ADAM, memory)
    part = format_bytes(whole / devices)
    # as lean as can be: slices of a node, of the layers beyond it, and all that saves activations
    tp = max(t for t in (1, 2, 4, 8) if devices % t == 0)
    saving: dict[str, Any] = {
        "recompute": "full",
        "flash_attention": True,
        "sequence_parallel": True,
    }
    model, lean = sizes.decoder(billions), Layout(tp=tp, pp=devices // tp, **saving)

    def fit(size: int, recipe: str = ADAM) -> Fit:
        return td.fits(model, lean, sizes.machine(devices, size), recipe)

    full = fit(memory)
    lighter = {name: fit(memory, name) for name in LIGHTER}
    larger = {f"{gb} GB": fit(gb * GB) for gb in LARGER}
    _, how, context = sizes.with_context(billions, memory, few)
    fix = full.smallest_fix
    lines = [
        sizes.convention(),
        f"{billions:g}e9 parameters x {each} B = {format_bytes(whole)}; / {gpus} = {part} a GPU of "
        f"{room}: {holds(whole / devices, memory)}, as slices and as ZeRO-3 alike; fp16 weights "
        f"alone {format_bytes(2 * n / devices)}",
        f"{format_bytes(whole)} / {room} = {whole / memory:.4g} -> {count(few, 'GPU')} for the "
        f"states",
        how,
        f"with activations (all recomputed) and buffers too, as below: {sizes.verdict(full)}",
        *(
            f"{name}, {load_recipe(name).bytes_per_parameter} B a parameter: {found.verdict}, "
            f"{format_bytes(found.expected)}"
            for name, found in lighter.items()
        ),
        f"larger GPUs for {format_bytes(full.expected)}: "
        + ", ".join(f"{name} {found.verdict}" for name, found in larger.items()),
    ]
    if fix:
        fits_on = f"{brief(fix.layout)} on {count(fix.devices, 'GPU')} fits"
        lines.append(f"other layouts: {fits_on}")
    if full.verdict == "fits":
        answer = (
            f"It is feasible: {format_bytes(full.expected)} on each of {gpus} of {room}, of it "
            f"{part} states."
        )
    else:
        ways = [name for name, found in lighter.items() if found.verdict == "fits"]
        outs = [f"a lighter recipe ({', '.join(ways)})"] if ways else []
        first = next((name for name, found in larger.items() if found.verdict == "fits"), None)
        if first and int(first.split()[0]) * GB > memory:
            outs.append(f"GPUs of {first}")
        if fix:
            outs.append(f"{count(fix.devices, 'GPU')} of this size, {brief(fix.layout)}")
        answer = (
            f"{'Infeasible' if full.verdict == 'no' else 'Too tight'}: full fine-tuning takes "
            f"{part} a GPU by its states alone, of {room}; they alone need {count(few, 'GPU')}"
            f"{context}. What would make it feasible: {'; '.join(outs) or 'nothing tried'}."
        )
    plans = {
        f"{devices} slices": (Layout(tp=devices), ADAM),
        f"ZeRO-3 on {devices}": (Layout(dp=devices, zero=3), ADAM),
        f"{devices} slices, fp16 weights": (Layout(tp=devices), "fp16-weights"),
        f"{devices} slices, bf16-adam": (Layout(tp=devices), "bf16-adam"),
        f"{few} slices": (Layout(tp=few), ADAM),
        f"{max(1, few - 1)} slices": (Layout(tp=max(1, few - 1)), ADAM),
    }
    return WorkedAnswer(
        answer,
        lines,
        {
            "states_each": -(-n // devices) * each,
            "fewest_devices": few,
            "verdict": full.verdict,
            "other_verdicts": {name: f.verdict for name, f in (lighter | larger).items()},
            "fix": fix and str(fix.layout),
        },
        lambda cluster: runs.held(cluster, "What a node holds", n, runs.under(plans, memory)),
        figure=lambda: sizes.bars(
            billions, {name: (Layout(tp=devices), name) for name in (ADAM, *LIGHTER[:-1])}, memory
        ),
    )
