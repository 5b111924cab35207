"""What planning questions start from: a decoder of so many parameters on devices of so much memory.

billions=30, memory="80GB", devices=8  ->  a Model, a ClusterSpec, the states on a GPU
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from tiledask.lab.course.words import count
from tiledask.plan.fitting.overhead import CUDA_CONTEXT
from tiledask.plan.inputs.hardware import ClusterSpec, load_cluster
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import load_recipe, minimum_devices, state_bytes
from tiledask.plan.timing.collective_time import zero_passes
from tiledask.plan.units import format_bytes

GB = 10**9
ADAM = "mixed-adam-16"
CONVENTIONS = ("fp16-weights", "fp32-weights", "fp32-sgd", ADAM, "mixed-adam-18")
"""Recipes whose bytes a parameter a question may mean."""
HEAD, VOCABULARY = 128, 51_200


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
    name = f"decoder of {billions:g} billion"
    return Model(
        hidden=width, layers=layers, heads=width // HEAD, ffn=ffn, vocab=VOCABULARY, name=name
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
    near, far = known.within_node, known.between_nodes
    return replace(
        known,
        device=replace(known.device, name="each GPU", memory_bytes=memory, memory_mib=None),
        devices_per_node=min(per_node, devices),
        within_node=replace(near, bytes_per_second=within or near.bytes_per_second),
        between_nodes=replace(far, bytes_per_second=between or far.bytes_per_second),
    )


Plans = Mapping[str, tuple[Layout, str]]
"""Name -> a layout, and the recipe of what is kept."""


class States(NamedTuple):
    """Of a model on a GPU."""

    size: int
    how: str
    """Worked out: "(2 + 14 / 4) B x 30e9 / 8 = 20.62 GB"."""


def states(billions: float, layout: Layout, recipe: str = ADAM) -> States:
    """Bytes of all states on a GPU.

    >>> states(30, Layout(dp=4, tp=2, pp=4, zero=2)).how
    '(2 + 14 / 4) B x 30e9 / 8 = 20.62 GB'
    """
    kept, slices = load_recipe(recipe).states, layout.tp * layout.pp
    whole = sum(s.bytes for s in kept if not s.sharded(layout.zero) or layout.dp == 1)
    shared = sum(s.bytes for s in kept) - whole
    each = " + ".join([str(whole)] * bool(whole) + [f"{shared} / {layout.dp}"] * bool(shared))
    share = -(-parameters(billions) // slices)
    size = sum(state_bytes(share, recipe, layout.zero, layout.dp).values())
    each = f"({each})" if whole and shared else each
    split = f" / {slices}" if slices > 1 else ""
    return States(size, f"{each} B x {billions:g}e9{split} = {format_bytes(size)}")


def each_of(billions: float, plans: Plans) -> dict[str, States]:
    """The states on a GPU under each plan."""
    return {name: states(billions, *plan) for name, plan in plans.items()}


def with_context(
    billions: float, memory: int, few: int, recipe: str = ADAM
) -> tuple[int | None, str, str]:
    """(fewest slices whose states leave a CUDA context its room, None if none do; how; what that
    changes of the ``few`` without one, in brackets)."""
    room = memory - CUDA_CONTEXT
    context = f"with a CUDA context of {CUDA_CONTEXT / 1e9:.2f} GB on each GPU"
    if room <= 0:
        return None, f"{context} nothing is left of {format_bytes(memory)}", ""
    more = minimum_devices(parameters(billions), recipe, room)
    whole = format_bytes(parameters(billions) * load_recipe(recipe).bytes_per_parameter)
    each = f"({format_bytes(memory)} - {CUDA_CONTEXT / 1e9:.2f} GB)"
    how = f"{context}, as `tiledask fit` counts: {whole} / {each} -> {count(more, 'GPU')}"
    return more, how, f" ({more} with a CUDA context on each)" * (more != few)


def gradient_bytes(billions: float, layout: Layout) -> float:
    """Bytes that a GPU sends in a step for gradients, and for ZeRO's weights, in rings.

    >>> [gradient_bytes(30, Layout(pp=4, dp=d)) / 1e9 for d in (8, 16)]
    [26.25, 28.125]
    """
    kept, d = load_recipe(ADAM), layout.dp
    gradients, weights = map(int, zero_passes(layout.zero, layout.microbatches))
    each = gradients * kept.gradient_bytes + weights * kept.gathered_bytes
    return each * (d - 1) / d * parameters(billions) / (layout.tp * layout.pp)
