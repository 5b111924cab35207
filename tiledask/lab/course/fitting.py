"""2, 3, 13 to 15, 18, 21, 24 and 25: what no device holds, in copies or in slices, on how many."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.course import sizes
from tiledask.lab.course.question import Names, cut_over, question
from tiledask.lab.course.sizes import ADAM, GB
from tiledask.lab.course.words import brief, count
from tiledask.plan.fitting.fit import Fit
from tiledask.plan.formulas import bubble_fraction
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.recipes import (
    load_recipe,
    minimum_devices,
    state_bytes,
    zero3_minimum_degree,
)
from tiledask.plan.units import format_bytes

ROWS, TOKENS = 1000, 8
"""Rows of a large layer's matrix and of the batch."""
OPTIMIZERS = {
    "forward": "fp32-weights",
    "sgd": "fp32-sgd",
    "momentum": "fp32-momentum",
    "adam": "fp32-adam",
}
"""Step -> what is kept, in fp32: 1 to 4 arrays as large as the weights."""
BATCH = 0.6
"""Seconds that all layers take for one batch, whoever does them."""
LIGHTER = ("mixed-momentum", "mixed-adam-8bit", "bf16-adam", "bf16-adam-8bit", "fp16-sgd", "lora")
"""Recipes that keep less of each parameter, most first."""


@question(2)
def large_layer(weights: int, memory: int, gpus: int, step: str) -> Names:
    """The bytes of each strategy on the fullest GPU, and which have room."""
    arrays, columns, n = [*OPTIMIZERS].index(step) + 1, weights // (4 * ROWS), weights // 4
    room = memory // (4 * (arrays * ROWS + TOKENS))
    cut_over(gpus, columns=columns)
    if not room:
        raise ConfigError(f"a GPU of {memory} B has room for 0 columns of W; give it more memory")
    # strategy -> rows and columns of the part of W, rows of the batch, on the fullest GPU
    strategies = {
        "copies": (ROWS, columns, -(-TOKENS // gpus)),
        "smaller batches": (ROWS, columns, 1),
        "a layer each": (ROWS, columns, TOKENS),
        "columns": (ROWS, -(-columns // gpus), TOKENS),
        "rows": (-(-ROWS // gpus), columns, TOKENS),
    }
    size = {name: 4 * c * (arrays * r + tokens) for name, (r, c, tokens) in strategies.items()}
    rows = {
        name: (r * c / ROWS / columns, 4 * c * tokens, size[name])
        for name, (r, c, tokens) in strategies.items()
    }
    survive, fewest = [name for name in size if size[name] <= memory], -(-columns // room)
    fitting, whole = ", ".join(survive) or "nothing", "copies" in survive
    recipe = OPTIMIZERS[step]
    plans = {"copies": (Layout(dp=gpus), recipe), "columns": (Layout(tp=gpus), recipe)}
    return locals()


@question(3)
def bottleneck(weights: int, memory: int, gpus: int, recipe: str) -> Names:
    """W over the GPUs for each optimizer; the fewest GPUs of each."""
    n, size, fewest, rows = weights // 4, {}, {}, {}
    for name in OPTIMIZERS.values():
        size[name] = sum(state_bytes(-(-n // gpus), name).values())
        fewest[name] = minimum_devices(n, name, memory)
        rows[name] = load_recipe(name).bytes_per_parameter, size[name], fewest[name]
    few, mine, fits = fewest[recipe], size[recipe], size[recipe] <= memory
    _, how, context = sizes.with_context(n / 1e9, memory, few, recipe)
    plans = {"copies": (Layout(dp=gpus), "fp32-weights"), "slices": (Layout(tp=few), recipe)}
    return locals()


@question(13)
def first_layers_first(
    parameters: float, memory: int, units: int, recipe: str, transfer: float
) -> Names:
    """Bytes on one unit and on each of several; computation and time of one batch."""
    each, others, batch = load_recipe(recipe).bytes_per_parameter, units - 1, BATCH
    n = round(parameters)
    whole, T = parameters * each, batch + 2 * others * transfer
    share, few = whole / units, minimum_devices(int(parameters), recipe, memory)
    on_one, in_parts = whole <= memory, share <= memory
    plans = {"one unit": (Layout(), recipe), f"{units} units": (Layout(pp=units), recipe)}
    states = sizes.each_of(parameters / 1e9, plans)
    _, how, _ = sizes.with_context(parameters / 1e9, memory, few, recipe)
    return locals()


@question(14)
def copies_or_slices(billions: float, memory: int, devices: int) -> Names:
    """Fewest GPUs by every convention, what a copy and a slice keep, and what fits in the end."""
    n = sizes.parameters(billions)
    fewest = {name: minimum_devices(n, name, memory) for name in sizes.CONVENTIONS}
    whole, degree = n * load_recipe(ADAM).bytes_per_parameter, zero3_minimum_degree(n, ADAM, memory)
    fits, few, a_slice = whole <= memory, fewest[ADAM], -(-whole // devices)
    more, how, context = sizes.with_context(billions, memory, few)
    lean, there = Layout(dp=devices, flash_attention=True), sizes.machine(devices, memory)
    fix = td.fits(sizes.decoder(billions), lean, there).smallest_fix
    layout, fixed = fix and str(fix.layout), brief(fix.layout) if fix else "nothing"
    plans = {
        "A, copies": (Layout(dp=devices), ADAM),
        f"A, ZeRO-3 on {degree}": (Layout(dp=degree, zero=3), ADAM),
        f"B, {few} slices": (Layout(tp=few), ADAM),
        f"B, {few} slices, fp16 weights": (Layout(pp=few), "fp16-weights"),
    }
    states = sizes.each_of(billions, plans | {f"B, {devices} slices": (Layout(tp=devices), ADAM)})
    kinds = [f"{name} {n}" for name, n in fewest.items()]
    return locals()


@question(15)
def why_cut(billions: float, memory: int, recipe: str) -> Names:
    """Bytes of a GPU with copies and with slices, for 1, 2, 4, ... GPUs."""
    n, kept = sizes.parameters(billions), load_recipe(recipe)
    each, few = kept.bytes_per_parameter, minimum_devices(n, recipe, memory)
    whole = n * each
    fits = whole <= memory
    _, how, context = sizes.with_context(billions, memory, few, recipe)
    # 1, 2, 4, ... up to the first power of two that is enough
    powers = [2**i for i in range(max(1, few - 1).bit_length() + 1)]
    plans = {"2 copies": (Layout(dp=2), recipe)}
    plans |= {f"{N} slices": (Layout(tp=N), recipe) for N in sorted({*powers, few})}
    states = sizes.each_of(billions, plans)
    slices = [states[f"{N} slices"].size for N in powers]
    bits, sent = 8 * kept.gradient_bytes, n * kept.gradient_bytes
    run = {name: plans[name] for name in ("2 copies", *(f"{N} slices" for N in powers[-3:]))}
    run[f"{few} slices"] = plans[f"{few} slices"]
    return locals()


@question(18)
def feasible(billions: float, memory: int, devices: int) -> Names:
    """Whether a node trains it, and which recipe, GPU or number of GPUs would."""
    n, model = sizes.parameters(billions), sizes.decoder(billions)
    few, each = minimum_devices(n, ADAM, memory), load_recipe(ADAM).bytes_per_parameter
    equal, states_each = n * each / devices, -(-n // devices) * each
    # as lean as can be: slices of a node, of the layers beyond it, and all that saves activations
    tp = max(t for t in (1, 2, 4, 8) if devices % t == 0)
    saving: dict[str, Any] = {
        "recompute": "full",
        "flash_attention": True,
        "sequence_parallel": True,
    }
    lean = Layout(tp=tp, pp=devices // tp, **saving)

    def fit(size: int, recipe: str = ADAM) -> Fit:
        return td.fits(model, lean, sizes.machine(devices, size), recipe)

    full, (_, how, context) = fit(memory), sizes.with_context(billions, memory, few)
    others = {name: fit(memory, name) for name in LIGHTER}
    others |= {f"GPUs of {gb} GB": fit(gb * GB) for gb in (94, 141, 192, 288)}
    outs = [name for name, found in others.items() if found.verdict == "fits"]
    if fix := full.smallest_fix:
        outs.append(f"{count(fix.layout.devices, 'GPU')} of this size, {brief(fix.layout)}")
    would = "; ".join(outs) or "nothing tried"
    word = {"no": "Infeasible", "tight": "Too tight", "fits": "Feasible"}[full.verdict]
    plans = {r: (Layout(tp=devices), r) for r in (ADAM, "bf16-adam", "fp16-weights")}
    plans["ZeRO-3"] = Layout(dp=devices, zero=3), ADAM
    states = sizes.each_of(billions, plans)
    verdicts = {name.removeprefix("GPUs of "): found.verdict for name, found in others.items()}
    layout = fix and str(fix.layout)
    return locals()


# -- 21, 24 and 25: runs that fail or idle ---------------------------------------------------------


@question(21)
def postmortem(
    memory: int, stages: int, replicas: int, microbatches: int, slowest: float, scale: float
) -> Names:
    """The sizes for which the story can be true, busy shares, and where fp16 overflows."""
    least, p, m = memory / 4 / 1e9, stages, microbatches
    layouts = [Layout(dp=replicas, pp=p, zero=zero) for zero in range(4)]
    each = [sizes.states(1.0, layout).size for layout in layouts]
    most = [memory / size for size in each]
    rows = {zero: (each[zero] / 1e9, most[zero]) for zero in range(4)}
    busy, enough = Fraction(m, m + p - 1), 9 * (p - 1)
    used, idle, reaches = float(busy), 1 - float(busy), busy >= Fraction(9, 10)
    times = [1.0] * (p - 1) + [slowest]
    uneven = td.simulate(td.schedule("1f1b", p, m), forward=times, backward=[2 * t for t in times])
    idle_uneven, more = 1 - uneven.utilisation, m < enough
    alike = 65504 / replicas  # the largest number of fp16
    above = alike / scale
    works = next((zero for zero, high in enumerate(most) if high > least), None)
    story = "No size is both too large for one GPU and small enough for the stages"
    if works is not None:
        story = f"The story holds {f'with ZeRO-{works} ' * bool(works)}for {least:.4g} to "
        story += f"{most[works]:.4g} billion parameters"
        story += f", up to {most[3]:.4g} with ZeRO-3" * (0 < works < 3)
    n = sizes.parameters(least * 1.05)
    plans = {f"{n / 1e9:.4g} billion, ZeRO-{z}": (layouts[z], ADAM) for z in range(3)}
    return locals()


@question(24)
def refresh(billions: float, memory: int, dp: int, tp: int, pp: int, microbatches: int) -> Names:
    """What A and B keep under each stage of ZeRO, and how idle B's stages are."""
    n, devices = sizes.parameters(billions), dp * tp * pp
    plans = {f"B, ZeRO-{z}": (Layout(dp=dp, tp=tp, pp=pp, zero=z), ADAM) for z in range(4)}
    plans["A"] = Layout(dp=devices), ADAM
    states = sizes.each_of(billions, plans)
    *of_b, whole = (found.size for found in states.values())
    starts = whole <= memory
    zero = next((z for z, size in enumerate(of_b) if size <= memory), None)
    lean = zero or 0
    run = replace(plans[f"B, ZeRO-{lean}"][0], microbatches=microbatches, flash_attention=True)
    fit = td.fits(sizes.decoder(billions), run, sizes.machine(devices, memory))
    bubbles = {str(m): bubble_fraction(pp, m) for m in sorted({microbatches, 4, 8, 16, 32})}
    idle = bubbles[str(microbatches)]
    busy, each = 1 - idle, [f"m = {m} {100 * (1 - idle):.1f} %" for m, idle in bubbles.items()]
    b_starts = f" does not start{' either' * (not starts)}, it needs ZeRO-{zero} or more"
    if not zero:
        b_starts = " does not start under any stage of ZeRO" if zero is None else " starts"
    return locals()


@question(25)
def hybrid(
    billions: float, memory: int, devices: int, stages: int, microbatches: int, gradient: float,
    scale: float,
) -> Names:  # fmt: skip
    """What every plan that was tried keeps, how busy stages are, and what fp16 loses."""
    p, d, m = stages, max(1, devices // stages), microbatches
    both, turns, n = f"dp {d} x pp {p}", m + p - 1, sizes.parameters(billions)
    split = Layout(dp=d, pp=p, zero=1)
    plans = {
        "copies, fp32": (Layout(dp=devices), "fp32-adam"),
        f"{p} stages, fp32 Adam": (Layout(pp=p), "fp32-adam"),
        f"{p} stages, fp32 SGD": (Layout(pp=p), "fp32-sgd"),
        both: (Layout(dp=d, pp=p), ADAM),
        f"{both}, ZeRO-1": (split, ADAM),
        f"{both}, ZeRO-2": (Layout(dp=d, pp=p, zero=2), ADAM),
        f"{devices} slices": (Layout(tp=devices), ADAM),
    }
    states = sizes.each_of(billions, plans)
    size = {name: found.size for name, found in states.items()}
    busy, piped = 1 / p, 1 - bubble_fraction(p, m)
    with np.errstate(over="ignore"):
        alone, kept = float(np.float16(gradient)), float(np.float16(gradient * scale)) / scale
    found = td.search(sizes.decoder(billions), sizes.machine(devices, memory), devices * m)
    fits, best = found.counts["fits"], found.best.layout
    fitting_best = str(best) if found.best.verdict == "fits" else None
    of_states = [f"{name} ({format_bytes(n)})" for name, n in size.items() if n <= memory]
    return locals()
