"""21. A run that diverged and idled: sizes that it can have had, its gaps, its NaN."""

from fractions import Fraction
from functools import partial
from math import ceil

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.puzzles.fields import number, whole
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.planning.scaled import idle, trained
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.recipes import load_recipe
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION"]

ALONE = "fp32-weights"
LARGEST_HALF = 65504
TRIED = (1, 4, 8, 16, 32)
SHARE = Fraction(9, 10)
"""Of the time, that devices are to be busy."""


def _window(memory: int, stages: int, replicas: int, zero: int) -> tuple[float, float, str]:
    """(billions of parameters too large for one GPU, most that the stages hold, how)."""
    layout = Layout(dp=replicas, pp=stages, zero=zero)
    each, _ = sized.states(1.0, layout)  # bytes of a billion
    least = memory / load_recipe(ALONE).bytes_per_parameter / 1e9
    return least, memory / each, f"{format_bytes(memory)} / ({each / 1e9:.4g} B a parameter)"


def _lined(memory: int, stages: int, replicas: int) -> tuple[list[str], dict[int, list[float]]]:
    lines, windows = [], {}
    for zero in range(4):
        least, most, how = _window(memory, stages, replicas, zero)
        windows[zero] = [least, most]
        lines.append(
            f"ZeRO-{zero}: {how} = at most {most:.4g} billion on the stages: "
            + (f"{least:.4g} to {most:.4g} billion" if most > least else "no size is both")
        )
    return lines, windows


def work(
    memory: int, stages: int, replicas: int, microbatches: int, slowest: float, scale: float
) -> WorkedAnswer:
    """The sizes for which the story can be true, busy shares, and where fp16 overflows."""
    each = load_recipe(ALONE).bytes_per_parameter
    lined, windows = _lined(memory, stages, replicas)
    least = windows[0][0]
    lines = [
        sized.convention(),
        f"too large for one GPU in fp32: {each} B x P > {format_bytes(memory)}, so P > "
        f"{least:.4g} billion",
        f"P parameters on {stages} stages x {replicas} replicas:",
        *lined,
    ]
    shares = {m: Fraction(m, m + stages - 1) for m in sorted({*TRIED, microbatches})}
    enough = ceil(SHARE * (stages - 1) / (1 - SHARE))
    lines += [
        f"busy, m / (m + p - 1), p = {stages}: "
        + ", ".join(f"m = {m} {100 * float(share):.1f} %" for m, share in shares.items()),
        f"{100 * float(SHARE):.0f} % or more takes m >= 9 (p - 1) = {enough}: m = {microbatches} "
        f"{'reaches' if shares[microbatches] >= SHARE else 'does not reach'} it",
    ]
    times = [1.0] * (stages - 1) + [slowest]
    uneven = td.simulate(
        td.schedule("1f1b", stages, microbatches), forward=times, backward=[2 * t for t in times]
    )
    ratio = max(times) * stages / sum(times)
    alike = LARGEST_HALF / replicas
    lines += [
        f"one stage takes {slowest:g} times as long: max / mean = {ratio:.4g}, and with m = "
        f"{microbatches} devices are busy {100 * uneven.utilisation:.1f} % of the time, simulated",
        f"fp16 ends at {LARGEST_HALF}; {replicas} replicas whose scaled gradients are each above "
        f"{LARGEST_HALF} / {replicas} = {alike:g} sum to more: inf, then NaN",
        f"with the loss times {scale:g} that is a gradient of {alike / scale:.4g}",
    ]
    works = [zero for zero, (low, high) in windows.items() if high > low]
    sizes = (
        f"The story holds with ZeRO-{works[0]} for {least:.4g} to {windows[works[0]][1]:.4g} "
        f"billion parameters" + f", up to {windows[3][1]:.4g} with ZeRO-3" * (works[0] < 3)
        if works and works[0]
        else f"The story holds for {least:.4g} to {windows[0][1]:.4g} billion parameters"
        if works
        else "No size is both too large for one GPU and small enough for the stages"
    )
    m = microbatches
    more = f"more micro-batches ({enough} for 90 % busy) and " if m < enough else ""
    return WorkedAnswer(
        f"{sizes}. Of the time, the ramp of m = {m} on {stages} stages leaves "
        f"{100 * (1 - float(shares[m])):.1f} % idle, {100 * (1 - uneven.utilisation):.1f} % with "
        f"a stage that takes {slowest:g} times as long: {more}layers cut evenly "
        f"help. The "
        f"NaN comes from fp16 sums of {replicas} replicas above {LARGEST_HALF}: divide before the "
        f"sum, sum in fp32, or let the loss scale give way.",
        tuple(lines),
        {
            "least_billions": least,
            "most_billions": [most for _, most in windows.values()],
            "zero_needed": works[0] if works else None,
            "busy": float(shares[m]),
            "enough": enough,
            "busy_uneven": uneven.utilisation,
            "overflows_above": alike / scale,
        },
        lambda: td.plots.gantt(uneven, title="One stage slower than the others"),
    )


def run(
    cluster: Cluster,
    memory: int,
    stages: int,
    replicas: int,
    microbatches: int,
    slowest: float,
    scale: float,
) -> Comparison:
    """States at the edge; idle time; NaN made and taken away by each remedy; the redesign."""
    from tiledask.lab.precision import REMEDIES, Reduction, acceptable, train_replicas
    from tiledask.lab.precision.drift import SAFETY

    least, *_ = _window(memory, stages, replicas, 0)
    plans = {
        f"{least * 1.05:.4g} billion, ZeRO-{zero}": (
            Layout(dp=replicas, pp=stages, zero=zero),
            "mixed-adam-16",
            memory,
        )
        for zero in (0, 1, 2)
    }
    rows = list(sized.held(cluster, "", least * 1.05, plans).rows)
    rows += [
        idle(cluster, stages, microbatches),
        idle(cluster, stages, microbatches, slowest=slowest),
    ]
    ranks = min(replicas, cluster.slots)
    mesh = td.Mesh(cluster, (ranks,))
    single = td.run_threads(
        partial(train_replicas, dtype="float32"), ranks, Reduction("float32"), 1.0
    )
    losses = single.results[0].losses
    for name, how in REMEDIES.items():
        played = td.run_threads(train_replicas, ranks, how, scale).results[0]
        found = td.run_ranks(train_replicas, mesh, how, scale, timeout=240).results[0]
        label = f"{ranks} replicas, fp16, {name}"
        rows.append(
            Claim(
                f"{label}: all losses are numbers",
                None,
                played.finite,
                found.finite,
                rule="equal",
                note=f"largest scaled gradient before a sum {found.largest:g}; {found.skipped} "
                "steps left out",
            )
        )
        if found.finite and not found.skipped:
            ends = losses[-1], found.losses[-1]
            said = acceptable(*ends, len(losses), "float16", max(2, ranks), 2)
            rows.append(
                Claim(
                    f"{label}: last loss off fp32's",
                    SAFETY * said.likely,
                    None,
                    said.difference,
                    rule="at most",
                    note="predicted: what round-off explains",
                )
            )
    rows += trained(
        cluster, "the redesign, fp16", Layout(dp=replicas, pp=stages, zero=1), dtype="float16"
    )
    return Comparison("The run again: memory at 1:1000, idle time, NaN and its remedies", rows)


QUESTION = CourseQuestion(
    21,
    "Postmortem and Redesign of a Distributed Training Run with Divergence and Low GPU Utilization",
    lambda memory, stages, replicas, microbatches, slowest, scale: (
        f"A model that does not fit one GPU of {format_bytes(memory)} in single precision was "
        f"trained on {stages * replicas} of them, {stages} stages x {replicas} replicas, "
        f"{microbatches} micro-batches each, in fp16 with fp32 masters. The loss became NaN and "
        f"GPUs idled unevenly. What was the cause of each, and what would you change?"
    ),
    {
        "memory": sized.memory_of("40GB", "80GB"),
        "stages": Input(4, 2, whole(2, 512), "stages of a replica"),
        "replicas": Input(2, 4, whole(2, 4096), "data-parallel replicas"),
        "microbatches": Input(4, 16, whole(1, 1024), "micro-batches of a replica in a step"),
        "slowest": Input(1.5, 1.0, number(0.1), "time of the last stage; the others take 1"),
        "scale": Input(2.0**18, 2.0**12, number(1.0), "by which the loss is multiplied"),
    },
    work,
    run,
    largest_run={"stages": 64, "replicas": 32, "microbatches": 256},
)
