"""24. New, smaller GPUs, two configurations: copies run out of memory, and so does the hybrid."""

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.puzzles.fields import whole
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.planning.scaled import idle, trained
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Comparison
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.pipelines.closed_form import bubble_fraction
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION"]

RECIPE = "mixed-adam-16"


def work(
    billions: float, memory: int, dp: int, tp: int, pp: int, microbatches: int
) -> WorkedAnswer:
    """What A and B keep under each stage of ZeRO, and how idle B's stages are."""
    n, devices, room = sized.parameters(billions), dp * tp * pp, format_bytes(memory)
    whole_model = n * load_recipe(RECIPE).bytes_per_parameter
    plans = [Layout(dp=dp, tp=tp, pp=pp, zero=zero) for zero in range(4)]
    worked = [sized.states(billions, plan) for plan in plans]
    held, slices = [size for size, _ in worked], tp * pp
    zero = next((zero for zero, size in enumerate(held) if size <= memory), None)
    lines = [
        sized.convention(),
        f"A, dp {devices}: 16 B x {billions:g}e9 = {format_bytes(whole_model)} a GPU of {room}, "
        f"{sized.holds(whole_model, memory)}; fp16 weights alone {format_bytes(2 * n)}",
        f"B, pp {pp} x tp {tp} x dp {dp}: {billions:g}e9 / ({pp} x {tp}) = "
        f"{n / slices / 1e9:.4g}e9 parameters a GPU",
        *(
            f"B, ZeRO-{zero}: {how}, {sized.holds(size, memory)}"
            for zero, (size, how) in enumerate(worked)
        ),
    ]
    fit = td.fits(
        sized.decoder(billions),
        Layout(
            dp=dp, tp=tp, pp=pp, microbatches=microbatches, zero=zero or 0, flash_attention=True
        ),
        sized.machine(devices, memory),
    )
    fix = fit.smallest_fix
    lines.append(
        f"with activations, buffers and a CUDA context, as `tiledask fit` counts, B with "
        f"ZeRO-{zero or 0}: {sized.verdict(fit)}"
        + (f"; {sized.brief(fix.layout)} fits on {sized.gpus(fix.devices)}" if fix else "")
    )
    bubbles = {}
    for m in sorted({microbatches, 4, 8, 16, 32}):
        bubbles[str(m)] = bubble_fraction(pp, m)
    lines.append(
        f"busy, m / (m + p - 1), p = {pp}: "
        + ", ".join(f"m = {m} {100 * (1 - idle):.1f} %" for m, idle in bubbles.items())
    )
    if zero is None:
        starts = "B does not start under any stage of ZeRO"
    elif zero == 0 and fit.verdict == "fits":
        starts = "B starts as it is written"
    elif zero == 0:
        starts = (
            f"B's states fit as it is written, with all else counted it is {sized.verdict(fit)}"
        )
    else:
        either = " either" * (whole_model > memory)
        starts = f"B as written does not start{either}, it needs ZeRO-{zero} or more"
    everything = (
        ""
        if fix is None
        else (
            f"; with all else counted {sized.brief(fix.layout)} on {sized.gpus(fix.devices)} fits"
        )
    )
    return WorkedAnswer(
        f"A needs {format_bytes(whole_model)} on every GPU of {room} and "
        f"{'cannot start' if whole_model > memory else 'starts'}. {starts}: the states are "
        f"{', '.join(f'{format_bytes(size)} (ZeRO-{z})' for z, size in enumerate(held))}"
        f"{everything}. B's {pp} stages are busy "
        f"{100 * (1 - bubbles[str(microbatches)]):.0f} % of the time with "
        f"{microbatches} micro-batches; more of them, or chunks, fill the gaps.",
        tuple(lines),
        {
            "copy_bytes": whole_model,
            "states": held,
            "lowest_zero": zero,
            "idle": bubbles,
            "idle_now": bubbles[str(microbatches)],
            "verdict": fit.verdict,
        },
        lambda: sized.bars(
            billions, {f"B, ZeRO-{plan.zero}": (plan, RECIPE) for plan in plans}, memory
        ),
    )


def run(
    cluster: Cluster, billions: float, memory: int, dp: int, tp: int, pp: int, microbatches: int
) -> Comparison:
    """A and B refused, B held from the stage of ZeRO on that it needs; idle time."""
    plans = {"A": (Layout(dp=dp * tp * pp), RECIPE, memory)}
    for zero in range(4):
        layout = Layout(dp=dp, tp=tp, pp=pp, zero=zero)
        plans["B as written" if not zero else f"B, ZeRO-{zero}"] = layout, RECIPE, memory
    table = sized.held(cluster, "A, B and what B lacks", billions, plans)
    rows = [idle(cluster, pp, microbatches)]
    rows += trained(cluster, "B, ZeRO-2", Layout(dp=dp, tp=tp, pp=pp, zero=2))
    return Comparison(table.title, (*table.rows, *rows))


QUESTION = CourseQuestion(
    24,
    "Choosing a Distributed Training Configuration After a Hardware Refresh",
    lambda billions, memory, dp, tp, pp, microbatches: (
        f"{dp * tp * pp} GPUs of {format_bytes(memory)} replace larger ones, and a model of "
        f"{billions:g} billion parameters is to be trained in mixed precision. Configuration A is "
        f"data parallel over all {dp * tp * pp}; B has {pp} stages x {tp} tensor slices x {dp} "
        f"copies, {microbatches} micro-batches each. It is said that A runs out of memory, and "
        f"that B starts and shows idle gaps. Which of that is so, and what would you run?"
    ),
    {
        "billions": sized.size_of(30.0, 7.0),
        "memory": sized.memory_of("24GB", "80GB"),
        "dp": Input(4, 8, whole(1, 4096), "copies in B"),
        "tp": Input(2, 4, whole(1, 8), "tensor slices in B"),
        "pp": Input(4, 8, whole(1, 64), "stages in B"),
        "microbatches": Input(4, 16, whole(1, 4096), "micro-batches of a copy in a step"),
    },
    work,
    run,
    largest_run={"dp": 512, "microbatches": 256},
)
