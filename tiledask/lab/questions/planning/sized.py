"""What planning questions start from: a decoder of so many parameters on devices of so much memory.

billions=30, memory="80GB", devices=8  ->  a Model, a ClusterSpec, states held at 1:1000
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tiledask as td
from tiledask.distributed.cluster.cluster import Cluster
from tiledask.lab.plots.primitives import Figure
from tiledask.lab.puzzles.fields import number, size, whole
from tiledask.lab.questions.question import Input
from tiledask.lab.table import Claim, Comparison
from tiledask.plan.fitting.fit import Fit, minimum_devices
from tiledask.plan.fitting.overhead import CUDA_CONTEXT
from tiledask.plan.inputs.hardware import ClusterSpec, load_cluster
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import load_recipe, state_bytes
from tiledask.plan.ledger import ALWAYS, Ledger, Row
from tiledask.plan.timing.collective_time import zero_passes
from tiledask.plan.units import format_bytes

__all__ = [
    "CONVENTIONS",
    "bars",
    "beside",
    "brief",
    "convention",
    "counted",
    "decoder",
    "devices_of",
    "gpus",
    "gradient_bytes",
    "held",
    "holds",
    "machine",
    "memory_of",
    "parameters",
    "plain",
    "size_of",
    "states",
    "verdict",
]

CONVENTIONS = ("fp16-weights", "fp32-weights", "fp32-sgd", "mixed-adam-16", "mixed-adam-18")
"""Recipes whose bytes a parameter a question may mean."""
HEAD = 128
VOCABULARY = 51_200
SCALE, MOST_HELD = 1000, 160 * 10**6
"""Parameters and bytes per one that is run, ten times as many where a worker would hold more."""
STAGES = 12
"""Stages that are run, one after the other on few workers; of more, all alike, one is."""


def size_of(billions: float) -> Input:
    """The input for a model's size."""
    return Input(billions, _billions, "parameters of the model, in billions")


def _billions(value: Any) -> float:
    found = number(0.2)(value)
    if found > 10_000:
        raise ValueError("must be at most 10000")
    return found


def memory_of(each: str, of: str = "one GPU") -> Input:
    """The input for a device's memory."""
    return Input(each, size, f"memory of {of} (GB = 1e9 bytes)")


def devices_of(count: int, meaning: str = "GPUs") -> Input:
    """The input for a number of devices."""
    return Input(count, whole(1, 4096), meaning)


def parameters(billions: float) -> int:
    """The number itself."""
    return round(billions * 10**9)


def decoder(billions: float) -> Model:
    """A GPT of that many parameters, to 0.2 %: heads of 128, a multiple of 8 of them and of layers,
    a width of about 128 times the layers.

    >>> model = decoder(30)
    >>> model.layers, model.hidden, round(model.parameters / 1e9, 2)
    (48, 7168, 30.01)
    """
    wanted = parameters(billions)
    width = 8 * HEAD * max(1, round((wanted * HEAD / 12) ** (1 / 3) / (8 * HEAD)))
    rest = max(1, wanted - VOCABULARY * width)
    layers = 8 * max(1, round(rest / (12 * width**2) / 8))
    ffn = 64 * max(1, round((rest / layers - 4 * width**2) / (2 * width) / 64))
    return Model(
        hidden=width,
        layers=layers,
        heads=width // HEAD,
        ffn=ffn,
        vocab=VOCABULARY,
        name=f"decoder of {billions:g} billion",
    )


def machine(
    devices: int,
    memory: int,
    per_node: int = 8,
    within: float | None = None,
    between: float | None = None,
) -> ClusterSpec:
    """A100s with this much memory, ``per_node`` in a node; links in bytes/s a device."""
    known = load_cluster(f"{devices}xA100-80GB")
    links = {"within_node": within, "between_nodes": between}
    faster = {
        name: replace(getattr(known, name), bytes_per_second=speed)
        for name, speed in links.items()
        if speed is not None
    }
    device = replace(known.device, name="each GPU", memory_bytes=memory, memory_mib=None)
    return replace(known, device=device, devices_per_node=min(per_node, devices), **faster)


def states(billions: float, layout: Layout, recipe: str = "mixed-adam-16") -> tuple[int, str]:
    """(bytes of all states on a GPU, how they are worked out).

    >>> states(30, Layout(dp=4, tp=2, pp=4, zero=2))
    (20625000000, '(2 + 14 / 4) B x 30e9 / 8 = 20.62 GB')
    """
    kept, slices = load_recipe(recipe).states, layout.tp * layout.pp
    whole = sum(s.bytes for s in kept if not s.sharded(layout.zero) or layout.dp == 1)
    shared = sum(s.bytes for s in kept) - whole
    each = " + ".join([str(whole)] * bool(whole) + [f"{shared} / {layout.dp}"] * bool(shared))
    share = -(-parameters(billions) // slices)
    size = sum(state_bytes(share, recipe, layout.zero, layout.dp).values())
    each = f"({each})" if whole and shared else each
    split = f" / {slices}" if slices > 1 else ""
    return size, f"{each} B x {billions:g}e9{split} = {format_bytes(size)}"


def holds(size: float, memory: int) -> str:
    """Whether states of that size have room, in words.

    >>> holds(60e9, 80 * 10**9), holds(40e9, 40 * 10**9), holds(60e9, 40 * 10**9)
    ('20 GB left', 'filled to the last byte', '20 GB too much')
    """
    if size == memory:
        return "filled to the last byte"
    return f"{format_bytes(abs(memory - size))} {'left' if size < memory else 'too much'}"


def convention(*recipes: str) -> str:
    """What is counted where states are: said once on a page."""
    said = []
    for name in recipes or ("mixed-adam-16",):
        each = [state.bytes for state in load_recipe(name).states if state.of == "parameters"]
        added = f"{' + '.join(map(str, each))} = {sum(each)}" if len(each) > 1 else f"{each[0]}"
        said.append(f"{name} {added} B a parameter")
    return f"states alone: {', '.join(said)}; GB = 1e9 bytes; no CUDA context, no activations"


def counted(billions: float, memory: int, recipe: str = "mixed-adam-16") -> tuple[int | None, str]:
    """(fewest slices whose states leave a CUDA context its room, how): None if none do."""
    room = memory - CUDA_CONTEXT
    context = f"with a CUDA context of {CUDA_CONTEXT / 1e9:.2f} GB on each GPU"
    if room <= 0:
        return None, f"{context} nothing is left of {format_bytes(memory)}"
    few = minimum_devices(parameters(billions), recipe, room)
    whole = format_bytes(parameters(billions) * load_recipe(recipe).bytes_per_parameter)
    each = f"{format_bytes(memory)} - {CUDA_CONTEXT / 1e9:.2f} GB"
    return few, f"{context}, as `tiledask fit` counts: {whole} / ({each}) -> {gpus(few)}"


def verdict(fit: Fit) -> str:
    """What `tiledask fit` says of everything counted, and of which bytes."""
    room = format_bytes(fit.capacity)
    if fit.verdict == "tight":
        return (
            f"tight (it may or may not fit {room}: {format_bytes(fit.band[0])} before overhead, "
            f"{format_bytes(fit.expected)} with it)"
        )
    return f"{fit.verdict}, {format_bytes(fit.expected)} needed of {room}"


def gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"


def beside(few: int, with_context: int | None) -> str:
    """What a CUDA context on each GPU changes, in brackets; nothing where it changes nothing."""
    changes = with_context is not None and with_context != few
    return f" ({with_context} with a CUDA context on each)" if changes else ""


def brief(layout: Layout) -> str:
    """The degrees of a layout and what saves memory, in words.

    >>> brief(Layout(dp=4, tp=2, zero=3, recompute="full")), brief(Layout())
    ('dp 4 x tp 2, ZeRO-3, recompute full', 'one GPU')
    """
    degrees = {"dp": layout.dp, "tp": layout.tp, "pp": layout.pp}
    split = " x ".join(f"{name} {n}" for name, n in degrees.items() if n > 1) or "one GPU"
    zero = f", ZeRO-{layout.zero}" if layout.zero else ""
    again = f", recompute {layout.recompute}" if layout.recompute != "none" else ""
    chunks = f", interleave {layout.interleave}" if layout.interleave > 1 else ""
    return f"{split}{chunks}{zero}{again}"


def bars(billions: float, plans: Mapping[str, tuple[Layout, str]], memory: int) -> Figure:
    """A figure of the states on a GPU, by tensor class, of each plan: (layout, recipe)."""
    ledgers = {}
    for name, (layout, recipe) in plans.items():
        share = -(-parameters(billions) // (layout.tp * layout.pp))
        sizes = state_bytes(share, recipe, layout.zero, layout.dp).items()
        ledgers[name] = Ledger.of(Row(0, tensor, ALWAYS, n, recipe) for tensor, n in sizes)
    return td.plots.memory_bars(ledgers, memory, place="GPU", title="States on a GPU")


def gradient_bytes(billions: float, layout: Layout, recipe: str = "mixed-adam-16") -> float:
    """Bytes that a GPU sends in a step for gradients, and for ZeRO's weights, in rings.

    >>> [gradient_bytes(30, Layout(pp=4, dp=d)) / 1e9 for d in (8, 16)]
    [26.25, 28.125]
    """
    kept, d = load_recipe(recipe), layout.dp
    gradients, weights = map(int, zero_passes(layout.zero, layout.microbatches))
    each = gradients * kept.gradient_bytes + weights * kept.gathered_bytes
    return each * (d - 1) / d * parameters(billions) / (layout.tp * layout.pp)


def held(
    cluster: Cluster,
    title: str,
    billions: float,
    plans: Mapping[str, tuple[Layout, str, int]],
    *more: Claim,
) -> Comparison:
    """What workers held, or were refused, of each plan: (layout, recipe, bytes of a device); and
    ``more``.

    States depend on tp x pp alone, so that more than STAGES stages are run as as many slices.
    """
    from tiledask.distributed.memory.claims import run_claim
    from tiledask.lab.claims import compare_claims

    scale = SCALE
    while max(memory for _, _, memory in plans.values()) > scale * MOST_HELD:
        scale *= 10
    runs = {}
    for name, (layout, recipe, memory) in plans.items():
        if layout.pp > STAGES:
            layout = replace(layout, tp=layout.tp * layout.pp, pp=1)
        asked = parameters(billions), layout, memory, cluster
        runs[name] = run_claim(*asked, recipe=recipe, scale=scale, timeout=240)
    table = compare_claims(f"{title}, states alone, run at 1:{scale}", runs)
    return Comparison(table.title, (*table.rows, *more))


def plain(layout: Layout) -> Layout:
    """Of a layout, how it shares out states."""
    return Layout(dp=layout.dp, tp=layout.tp, pp=layout.pp, zero=layout.zero)
