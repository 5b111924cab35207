"""15. Why a model is cut at all: bytes of a GPU as GPUs are added, with copies and with slices."""

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.puzzles.fields import choice
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Comparison
from tiledask.plan.fitting.fit import minimum_devices
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION"]

RUN = (1, 2, 4)
"""Numbers of workers that are run with enough memory to see the whole peak."""


def counts(enough: int) -> list[int]:
    """1, 2, 4, ... up to the first power of two that is enough."""
    return [2**k for k in range(max(1, enough - 1).bit_length() + 1)]


def work(billions: float, memory: int, recipe: str) -> WorkedAnswer:
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


def run(cluster: Cluster, billions: float, memory: int, recipe: str) -> Comparison:
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


QUESTION = CourseQuestion(
    15,
    "Rationale for Model Partitioning",
    "Why is a model of {billions} billion parameters ({recipe}) cut over GPUs of {memory}, and not "
    "copied to each? From "
    "how many GPUs on does either fit?",
    {
        "billions": sized.size_of(30.0, 7.0),
        "memory": sized.memory_of("40GB", "24GB"),
        "recipe": Input(
            "mixed-adam-16",
            "fp16-weights",
            choice((*sized.CONVENTIONS, "fp32-adam")),
            "what is kept of each parameter",
        ),
    },
    work,
    run,
)
