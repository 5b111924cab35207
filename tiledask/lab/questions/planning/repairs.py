"""21, 24 and 25: runs that fail or idle: sizes they can have had, their gaps, NaN; a hybrid."""

from fractions import Fraction
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
from tiledask.plan.pipelines.closed_form import bubble_fraction, naive_utilisation
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION_21", "QUESTION_24", "QUESTION_25"]

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


def work_21(
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


def run_21(
    cluster: Cluster,
    memory: int,
    stages: int,
    replicas: int,
    microbatches: int,
    slowest: float,
    scale: float,
) -> Comparison:
    """States at the edge; idle time; NaN made and taken away by each remedy; the redesign."""
    from tiledask.lab.precision import REMEDIES, train_replicas

    least, *_ = _window(memory, stages, replicas, 0)
    plans = {
        f"{least * 1.05:.4g} billion, ZeRO-{zero}": (
            Layout(dp=replicas, pp=stages, zero=zero),
            "mixed-adam-16",
            memory,
        )
        for zero in (0, 1, 2)
    }
    rows = [
        idle(cluster, stages, microbatches),
        idle(cluster, stages, microbatches, slowest=slowest),
    ]
    ranks = min(replicas, cluster.slots)
    for name, how in REMEDIES.items():
        played = td.run_threads(train_replicas, ranks, how, scale).results[0]
        mesh = td.Mesh(cluster, (ranks,))
        found = td.run_ranks(train_replicas, mesh, how, scale, timeout=240).results[0]
        name = f"{ranks} replicas, fp16, {name}: all losses are numbers"
        note = f"largest scaled gradient before a sum {found.largest:g}"
        rows.append(Claim(name, None, played.finite, found.finite, rule="equal", note=note))
    redesign = Layout(dp=replicas, pp=stages, zero=1)
    rows += trained(cluster, "the redesign, fp16", redesign, dtype="float16")
    return sized.held(cluster, "The run again", least * 1.05, plans, *rows)


QUESTION_21 = CourseQuestion(
    21,
    "Postmortem and Redesign of a Distributed Training Run with Divergence and Low GPU Utilization",
    lambda memory, stages, replicas, microbatches, slowest, scale: (
        f"A model that does not fit one GPU of {format_bytes(memory)} in single precision was "
        f"trained on {stages * replicas} of them, {stages} stages x {replicas} replicas, "
        f"{microbatches} micro-batches each, in fp16 with fp32 masters. The loss became NaN and "
        f"GPUs idled unevenly. What was the cause of each, and what would you change?"
    ),
    {
        "memory": sized.memory_of("40GB"),
        "stages": Input(4, whole(2, 512), "stages of a replica"),
        "replicas": Input(2, whole(2, 4096), "data-parallel replicas"),
        "microbatches": Input(4, whole(1, 1024), "micro-batches of a replica in a step"),
        "slowest": Input(1.5, number(0.1), "time of the last stage; the others take 1"),
        "scale": Input(2.0**18, number(1.0), "by which the loss is multiplied"),
    },
    work_21,
    run_21,
    largest_run={"stages": 64, "replicas": 32, "microbatches": 256},
)
RECIPE = "mixed-adam-16"


def work_24(
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


def run_24(
    cluster: Cluster, billions: float, memory: int, dp: int, tp: int, pp: int, microbatches: int
) -> Comparison:
    """A and B refused, B held from the stage of ZeRO on that it needs; idle time."""
    plans = {"A": (Layout(dp=dp * tp * pp), RECIPE, memory)}
    for zero in range(4):
        layout = Layout(dp=dp, tp=tp, pp=pp, zero=zero)
        plans["B as written" if not zero else f"B, ZeRO-{zero}"] = layout, RECIPE, memory
    rows = trained(cluster, "B, ZeRO-2", Layout(dp=dp, tp=tp, pp=pp, zero=2))
    waits = idle(cluster, pp, microbatches)
    return sized.held(cluster, "A, B and what B lacks", billions, plans, waits, *rows)


QUESTION_24 = CourseQuestion(
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
        "billions": sized.size_of(30.0),
        "memory": sized.memory_of("24GB"),
        "dp": Input(4, whole(1, 4096), "copies in B"),
        "tp": Input(2, whole(1, 8), "tensor slices in B"),
        "pp": Input(4, whole(1, 64), "stages in B"),
        "microbatches": Input(4, whole(1, 4096), "micro-batches of a copy in a step"),
    },
    work_24,
    run_24,
    largest_run={"dp": 512, "microbatches": 256},
)


def _plans(devices: int, stages: int) -> dict[str, tuple[Layout, str]]:
    copies = max(1, devices // stages)
    return {
        "copies, fp32": (Layout(dp=devices), "fp32-adam"),
        f"{stages} stages, fp32 Adam": (Layout(pp=stages), "fp32-adam"),
        f"{stages} stages, fp32 SGD": (Layout(pp=stages), "fp32-sgd"),
        f"dp {copies} x pp {stages}": (Layout(dp=copies, pp=stages), RECIPE),
        f"dp {copies} x pp {stages}, ZeRO-1": (Layout(dp=copies, pp=stages, zero=1), RECIPE),
        f"dp {copies} x pp {stages}, ZeRO-2": (Layout(dp=copies, pp=stages, zero=2), RECIPE),
        f"{devices} slices": (Layout(tp=devices), RECIPE),
    }


def work_25(
    billions: float,
    memory: int,
    devices: int,
    stages: int,
    microbatches: int,
    gradient: float,
    scale: float,
) -> WorkedAnswer:
    """What every plan that was tried keeps, how busy stages are, and what fp16 loses."""
    from tiledask.lab.precision import FORMATS

    lines, states = [sized.convention(RECIPE, "fp32-adam", "fp32-sgd")], {}
    for name, (layout, recipe) in _plans(devices, stages).items():
        size, worked = sized.states(billions, layout, recipe)
        states[name] = size
        lines.append(f"{name}: {worked} of {format_bytes(memory)}, {sized.holds(size, memory)}")
    busy, piped = naive_utilisation(stages), 1 - bubble_fraction(stages, microbatches)
    half = FORMATS["float16"]
    alone, kept = half.nearest(gradient), half.nearest(gradient * scale) / scale
    step = 2.0**-half.digits
    lines += [
        f"{stages} stages, one batch at a time: 1 / {stages} = {100 * busy:.1f} % busy; "
        f"{microbatches} micro-batches: {microbatches} / {microbatches + stages - 1} = "
        f"{100 * piped:.1f} %",
        f"fp16, a gradient of {gradient:g}: {alone:.4g}; times {scale:g}, rounded, and back: "
        f"{kept:.4g}",
        f"fp16, a weight of 1 and an update of 2^-{half.digits}: {half.nearest(1 + step)!r}; in "
        f"an fp32 master {FORMATS['float32'].nearest(1 + step)!r}",
    ]
    model, machine = sized.decoder(billions), sized.machine(devices, memory)
    plans = td.search(model, machine, devices * microbatches)
    best, fits = plans.best, plans.best.verdict == "fits"
    lines.append(
        f"with activations, buffers and a CUDA context, as `tiledask fit` counts, "
        f"{plans.counts['fits']:,} of {plans.considered:,} layouts fit; "
        f"{'the fastest' if fits else 'the nearest'} is {sized.brief(best.layout)}: "
        f"{format_bytes(best.peak)} and overhead"
    )
    tried = {name: size <= memory for name, size in states.items()}
    said = [f"{name} ({format_bytes(states[name])})" for name, ok in tried.items() if ok]
    return WorkedAnswer(
        f"By their states these fit {format_bytes(memory)}: {'; '.join(said) or 'none'}. "
        + (
            f"The fastest layout with everything counted is {sized.brief(best.layout)} "
            f"({format_bytes(best.peak)}, {best.seconds:.3g} s a step)"
            if fits
            else "No layout fits with activations and overhead"
        )
        + f"; with micro-batches stages are busy {100 * piped:.0f} % of the time and not "
        f"{100 * busy:.0f} %; fp16 needs a loss scale and fp32 masters.",
        tuple(lines),
        {
            "states": states,
            "busy_naive": busy,
            "busy": piped,
            "gradient_alone": alone,
            "gradient_scaled": kept,
            "fitting": plans.counts["fits"],
            "best": str(best.layout) if fits else None,
        },
        lambda: sized.bars(billions, _plans(devices, stages), memory),
        (f"all of the layout: {best.layout}",),
    )


def run_25(
    cluster: Cluster,
    billions: float,
    memory: int,
    devices: int,
    stages: int,
    microbatches: int,
    **small: float,
) -> Comparison:
    """Plans held or refused; idle time; the hybrid trained in fp16; small numbers lost."""
    from tiledask.lab.precision import lost_update, underflow

    plans = {name: (*plan, memory) for name, plan in _plans(devices, stages).items()}
    hybrid = Layout(dp=max(1, devices // stages), pp=stages, zero=1)
    return sized.held(
        cluster,
        "Layouts that were tried",
        billions,
        plans,
        idle(cluster, stages, 1, "naive"),
        idle(cluster, stages, microbatches),
        *trained(cluster, "the hybrid, fp16", hybrid, dtype="float16"),
        *underflow(**small).rows,
        *lost_update().rows,
    )


QUESTION_25 = CourseQuestion(
    25,
    "Selecting a Hybrid Parallelism + Mixed-Precision Strategy for a Memory-Bound LLM Training Run",
    "A model of {billions} billion parameters is to be trained on {devices} GPUs of {memory}. Data "
    "parallelism ran out of memory; {stages} stages in single precision ran, it is said, but were "
    "mostly idle; fp16 was unstable. Which hybrid, and which precision, would you choose?",
    {
        "billions": sized.size_of(30.0),
        "memory": sized.memory_of("80GB"),
        "devices": sized.devices_of(8),
        "stages": Input(4, whole(1, 512), "stages of the run that idled"),
        "microbatches": Input(8, whole(1, 1024), "micro-batches of a copy in a step"),
        "gradient": Input(1e-8, number(above=True), "a typical small gradient"),
        "scale": Input(2.0**16, number(above=True), "by which the loss is multiplied"),
    },
    work_25,
    run_25,
    largest_run={"stages": 64, "microbatches": 256},
)
