"""25. A memory-bound run: copies that do not fit, stages that idle, fp16 that drifts; a hybrid."""

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.puzzles.fields import number, whole
from tiledask.lab.questions.planning import sized
from tiledask.lab.questions.planning.scaled import idle, trained
from tiledask.lab.questions.question import CourseQuestion, Input, WorkedAnswer
from tiledask.lab.table import Comparison
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.pipelines.closed_form import bubble_fraction, naive_utilisation
from tiledask.plan.units import format_bytes

__all__ = ["QUESTION"]

RECIPE = "mixed-adam-16"


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


def work(
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


def run(
    cluster: Cluster,
    billions: float,
    memory: int,
    devices: int,
    stages: int,
    microbatches: int,
    gradient: float,
    scale: float,
) -> Comparison:
    """Plans held or refused; idle time; the hybrid trained in fp16; small numbers lost."""
    from tiledask.lab.precision import lost_update, underflow

    plans = {
        name: (layout, recipe, memory) for name, (layout, recipe) in _plans(devices, stages).items()
    }
    table = sized.held(cluster, "Layouts that were tried", billions, plans)
    hybrid = Layout(dp=max(1, devices // stages), pp=stages, zero=1)
    return Comparison(
        table.title,
        (
            *table.rows,
            idle(cluster, stages, 1, "naive"),
            idle(cluster, stages, microbatches),
            *trained(cluster, "the hybrid, fp16", hybrid, dtype="float16"),
            *underflow(gradient, scale).rows,
            *lost_update().rows,
        ),
    )


QUESTION = CourseQuestion(
    25,
    "Selecting a Hybrid Parallelism + Mixed-Precision Strategy for a Memory-Bound LLM Training Run",
    "A model of {billions} billion parameters is to be trained on {devices} GPUs of {memory}. Data "
    "parallelism ran out of memory; {stages} stages in single precision ran, it is said, but were "
    "mostly idle; fp16 was unstable. Which hybrid, and which precision, would you choose?",
    {
        "billions": sized.size_of(30.0, 13.0),
        "memory": sized.memory_of("80GB", "40GB"),
        "devices": sized.devices_of(8, 16),
        "stages": Input(4, 2, whole(1, 512), "stages of the run that idled"),
        "microbatches": Input(8, 16, whole(1, 1024), "micro-batches of a copy in a step"),
        "gradient": Input(1e-8, 1e-6, number(above=True), "a typical small gradient"),
        "scale": Input(2.0**16, 2.0**10, number(above=True), "by which the loss is multiplied"),
    },
    work,
    run,
    largest_run={"stages": 64, "microbatches": 256},
)
