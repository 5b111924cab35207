"""15. Why a model is cut at all: bytes of a GPU as GPUs are added, with copies and with slices."""

from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.puzzles.fields import choice
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Comparison
from tiledask.plan.choosing.question_check import Critique
from tiledask.plan.fitting.fit import minimum_devices
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION"]

RUN = (1, 2, 4)
"""Numbers of workers that are run with enough memory to see the whole peak."""
WIRE = 2
"""Bytes of a gradient on its way."""


def counts(enough: int) -> list[int]:
    """1, 2, 4, ... up to the first power of two that is enough."""
    return [2**k for k in range(max(1, enough - 1).bit_length() + 1)]


def work(billions: float, memory: int, recipe: str) -> WorkedAnswer:
    """Bytes of a GPU with copies and with slices, for 1, 2, 4, ... GPUs."""
    n, each = sized.parameters(billions), load_recipe(recipe).bytes_per_parameter
    whole, enough = n * each, minimum_devices(n, recipe, memory)
    trains = load_recipe(recipe).trains
    lines = [
        f"{billions:g}e9 parameters x {each} B ({recipe}) = {format_bytes(whole)}; a GPU has "
        f"{format_bytes(memory)}"
    ]
    slices = {count: -(-n // count) * each for count in counts(enough)}
    for count, held in slices.items():
        fits = "fits" if held <= memory else "too much"
        lines.append(
            f"N = {count}: a copy each {format_bytes(whole)}; a slice each {format_bytes(whole)} / "
            f"{count} = {format_bytes(held)}, {fits}"
        )
    lines.append(
        "Copies: bytes a GPU do not depend on N, so that no N helps"
        if whole > memory
        else f"Copies: {format_bytes(whole)} a GPU for every N, which fits"
    )
    lines.append(f"Slices: {format_bytes(whole)} / {format_bytes(memory)} -> N >= {enough}")
    if trains:
        ring = 2 * (enough - 1) * n * WIRE / max(1, enough)
        lines.append(
            f"What copies would send of fp16 gradients in a step with N = {enough}: 2 (N-1)/N x "
            f"{format_bytes(n * WIRE)} = {format_bytes(ring)} a GPU"
        )
    first = "never" if whole > memory else "from the first GPU on"
    return WorkedAnswer(
        f"A model is cut because a slice shrinks with the GPUs and a copy does not: copies of "
        f"{format_bytes(whole)} fit {format_bytes(memory)} {first}, slices from {enough} GPUs on. "
        f"Cutting buys memory, not speed: layer by layer one GPU works at a time.",
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


def premise(billions: float, memory: int, recipe: str) -> Critique:
    """A copy is too large, and the fewest slices fit."""
    enough = minimum_devices(sized.parameters(billions), recipe, memory)
    return sized.premise_of(
        f"{billions:g} billion parameters on GPUs of {format_bytes(memory)}",
        billions,
        memory,
        max(2, enough),
        {"copies": {"dp": max(2, enough)}, "slices": {"pp": enough}},
        [
            sized.fits_claim("A copy is too large for a GPU", "copies", "too large"),
            sized.fits_claim(f"{enough} slices fit", "slices"),
        ],
        recipe=recipe,
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
    "Why is a model of 30 billion parameters cut over GPUs of 40 GB, and not copied to each? From "
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
    premise=premise,
)
