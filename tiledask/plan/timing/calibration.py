"""What programs reach of a datasheet's numbers: three small files, joined by the run.

data/calibration/device/h100.json          share of the peak in products, of the memory's bandwidth
                 kernel/cudnn.json         share of the peak in the attention core, by device
                 framework/megatron-2025   what of each collective is waited for, the host, the
                                           loss, what it holds in memory

Whose numbers, of seconds and of memory: the calibration's that is given, or the framework's that
is named; else the one's that the recipe is written after; if it is after none, the device's usual
program's. Where no device is named, memory is nobody's own: what the arithmetic says.
"""

import json
import os
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import hypot
from pathlib import Path
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan.data import read
from tiledask.plan.inputs.framework_memory import calibration_file
from tiledask.plan.inputs.hardware import Device
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.inputs.run import precision_of
from tiledask.plan.timing.roofline import Rates

__all__ = ["BESIDE", "Calibration", "calibration_of"]

OTHER = "other"
"""The entry of a file for devices that it does not name."""
BESIDE = "zero beside pp"
"""The stages of ZeRO that a program runs in a pipeline's stages."""
NINE_IN_TEN = 2.06
"""Times the mean of absolute errors: what nine of ten lie within where they are normal."""


@dataclass(frozen=True, repr=False, kw_only=True)
class Calibration:
    """What a run reaches: the numbers of a device, of an attention kernel and of a framework."""

    device: str
    kernel: str
    framework: str
    why: str  # this framework is assumed
    usual: bool = False  # it is the device's usual one: nobody named it
    named: bool = True  # the asker did, or a step was measured; a recipe's is one of several
    # -- of the device
    product_share: dict[str, float]  # of the peak, by precision, in deep products; else as bf16
    product_depth: float  # the k at which a product reaches half of that
    misaligned: float = 0.0  # what each halving of 32 down to what divides all its sizes adds
    memory_share: float  # of the memory bandwidth, in element-wise kernels
    tiles: bool  # products run in whole waves of tiles; otherwise their FLOP count
    launch_layer: float = 0.0  # s of a layer and micro-batch, for launches and small kernels
    launch_collective: float = 0.0  # s of each over tp beside bytes and links' latency
    launch_rank: float = 0.0  # more of them for each rank but the first
    # -- of the attention kernel
    flash_share: float  # of the peak, in a fused attention core; forward
    flash_backward_share: float
    flash_fill: float = 0.0  # tiles of 128 rows of a head at which it reaches half of its share
    # -- of the framework
    # "tp", "sum", their backward ones, "dp", "fsdp", "pp", "ep" -> the part of such a collective
    # that is waited for though work could hide it
    exposed: dict[str, float]
    exchange_share: float  # of a link's bandwidth, in exchanges of tokens between experts
    most_nodes: float  # that a token crosses to, once each; 0: each of its copies by itself
    own_adapter: bool = False  # copies gather through each device's adapter, not all of a node's
    copies_share: float = 1.0  # of the links' bandwidth, in sums and gathers between copies
    ring_part: float = 1.0  # of the core's share, against pieces of keys that came round
    gathers_operands: bool = False  # what tp gathers is as wide as the products' operands
    transfer_seconds: float = 0.0  # of a transfer between stages beside its bytes, each way
    prefetch: float = 0.0  # weights that ZeRO-3 gathers ahead, matrix by matrix; 0: a layer
    # products of weights' gradients add to those of earlier micro-batches, whatever their width
    # (Transformer Engine); otherwise only to gradients wider than the product's numbers
    adds_gradients: bool = False
    step_seconds: float  # of the host for a step
    layer_seconds: float  # of the host for a layer and micro-batch, both ways
    floor_seconds: float  # the least of a layer and micro-batch: the host issues no faster
    mixture_seconds: float  # what routing and its many small kernels add to a mixture, both ways
    eager_passes: float  # how often the fused passes over memory are done: 1 where compiled
    loss_passes: float  # the part of the unfused loss's passes over the logits that is done
    product_part: float  # of the device's share in products, what those of this program reach
    casts: float  # passes of 4 bytes over each input and output gradient of a product in 8 bits
    # -- of all together
    errors: dict[str, float]  # relative ones, that add up in quadrature to that of an estimate
    # field of a layout -> the values that the program runs; what it does not name is free
    runs: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    trains: str = "mixed-adam-16"  # the recipe that the program trains with
    scale: float = 1.0  # measured over estimated seconds, where a step of one's own was measured

    @property
    def name(self) -> str:
        return f"{self.device} x {self.kernel} x {self.framework}"

    def __repr__(self) -> str:
        error = 100 * hypot(*self.errors.values())
        return (
            f"Calibration({self.name} ({self.why}), times {self.scale:.4g}, within {error:.0f} %)"
        )

    def rates(self, device: Device, recipe: Recipe, width: int = 0) -> Rates:
        """What ``device`` reaches in numbers of ``width`` bytes, by default activations'."""
        precision = precision_of(device, recipe, width or recipe.compute_bytes)
        core = device.peak(precision_of(device, recipe, recipe.compute_bytes))
        share = self.product_share.get(precision, self.product_share["bf16"])
        return Rates(
            flops=device.peak(precision) * share * self.product_part,
            memory=device.memory_bandwidth * self.memory_share,
            depth=self.product_depth,
            misaligned=self.misaligned,
            multiprocessors=device.multiprocessors if self.tiles else 0,
            flash=core * self.flash_share,
            flash_backward=core * self.flash_backward_share,
            flash_fill=self.flash_fill,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what every ``calibration=`` reads again: the names of its files, and its scale."""
        names = "device", "framework", "scale", "errors"
        saved: dict[str, Any] = {name: getattr(self, name) for name in names}
        text = json.dumps(saved | {"why": self.why.partition(", read from")[0]}, indent=2)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(f"{text}\n", encoding="utf-8")


# --- the shipped files ----------------------------------------------------------------------------


@cache
def _joined(device: str, framework: str, why: str, kind: str) -> Calibration:
    """``kind``: "dense", "fp8" or "mixture", whose errors differ."""
    of_device = calibration_file("device", device)
    of_framework = calibration_file("framework", framework)
    generation, attention = of_device["generation"], of_framework["attention"]
    kernel = attention.get(generation, attention[OTHER])
    devices = calibration_file("kernel", kernel)["devices"]
    core = next(devices[each] for each in (device, generation, OTHER) if each in devices)
    runs = of_framework.get("runs", {})
    every = of_framework | of_device | core
    every |= {"device": device, "kernel": kernel, "framework": framework, "why": why}
    every |= {
        "errors": {
            "framework": NINE_IN_TEN * of_framework["errors"][kind],
            "device": of_device["error"],
        },
        "runs": {key: values for key, values in runs.items() if key != "from"},
    }
    return Calibration(**{n.name: every[n.name] for n in fields(Calibration) if n.name in every})


# --- whose numbers --------------------------------------------------------------------------------


def calibration_of(
    device: Device,
    recipe: Recipe,
    calibration: "Calibration | str | os.PathLike[str] | None" = None,
    framework: str | None = None,
    mixture: bool = False,
) -> Calibration:
    """The numbers that a run on ``device`` is estimated with.

    ``calibration``: one that was made (`tiledask.calibrate`), or the path of a saved one.
    ``framework``: a name in data/calibration/framework; by default the one that the recipe is
    written after, else the one that the device was calibrated with; ``why`` says which it is.
    The one rule of seconds and memory. ConfigError for a recipe that casts to a width that
    ``device`` has no units for.

    >>> from tiledask.plan.inputs.hardware import load_device
    >>> from tiledask.plan.inputs.recipes import load_recipe
    >>> calibration_of(load_device("H100"), load_recipe("mixed-adam-16")).name
    'h100 x cudnn x megatron-2025'
    """
    if recipe.product_bytes:
        precision_of(device, recipe)
    if calibration is not None:
        if framework is not None:
            raise ConfigError(
                f"a calibration names its framework; leave framework={framework!r} out, or give "
                f"no calibration"
            )
        if isinstance(calibration, str | os.PathLike):
            given = read(calibration)
            measured, framework = (given.take(str, key) for key in ("device", "framework"))
            if not (scale := given.take(float, "scale")):
                raise given.fail("scale", "must be above 0, got 0")
            off, why = given.object("errors"), given.take(str, "why", "a measured step")
            given.done()
            joined = _joined(measured, framework, f"{why}, read from {calibration}", "dense")
            errors = {name: off.take(float, name) for name in off.values}
            calibration = replace(joined, scale=scale, errors=errors)
        elif not isinstance(calibration, Calibration):
            rule = "a calibration is what td.calibrate made, or the path of its file"
            raise ConfigError(f"{rule}; got {short(calibration)}")
        if calibration.device != device.calibration:
            raise ConfigError(
                f"a calibration is of one kind of device: this one was measured on "
                f"{calibration.device}, and {device.name} is {device.calibration}; measure a step "
                f"there, or give no calibration"
            )
        return calibration
    if framework is not None and not isinstance(framework, str):
        raise ConfigError(f"framework is a name such as 'megatron-2025', got {framework!r:.40}")
    usual, named = False, framework is not None
    kind = "mixture" if mixture else "fp8" if recipe.operand_bytes == 1 else "dense"
    if framework is not None:
        why = "as asked"
    elif recipe.framework and not recipe.usual:
        framework, why = recipe.framework, f"as recipe {recipe.name} is"
    else:
        framework = calibration_file("device", device.calibration)["framework"]
        why, usual = f"the default for {device.name}", True
    return replace(_joined(device.calibration, framework, why, kind), usual=usual, named=named)
