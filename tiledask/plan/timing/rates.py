"""The rates of one device: a datasheet's numbers times the shares that a calibration says."""

from tiledask.errors import ConfigError
from tiledask.plan.inputs.hardware import Device
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.timing.calibration import Calibration
from tiledask.plan.timing.roofline import Rates

__all__ = ["precision_of", "rates_of"]


def precision_of(device: Device, recipe: Recipe, width: int = 0) -> str:
    """The precision of ``device`` that the products of ``recipe`` run in, or numbers of ``width``
    bytes.

    >>> from tiledask.plan.inputs.hardware import load_device
    >>> from tiledask.plan.inputs.recipes import load_recipe
    >>> [precision_of(load_device(name), load_recipe("mixed-adam-16")) for name in ("H100", "T4")]
    ['bf16', 'fp16']
    """
    width = width or recipe.operand_bytes
    order = {4: ("tf32", "fp32"), 2: ("bf16", "fp16"), 1: ("fp8",)}.get(width, ())
    peaks = dict(device.peak_flops)
    found = next((name for name in order if name in peaks), None)
    if found is None:
        raise ConfigError(
            f"{recipe.name} computes with {width} bytes a number, for which "
            f"{device.name} has no peak; it has {', '.join(peaks)}"
        )
    return found


def rates_of(device: Device, recipe: Recipe, calibration: Calibration, width: int = 0) -> Rates:
    """What ``device`` reaches in numbers of ``width`` bytes (default: those that ``recipe``
    computes with); the attention core is as wide as the activations."""
    precision = precision_of(device, recipe, width or recipe.compute_bytes)
    core = device.peak(precision_of(device, recipe, recipe.compute_bytes))
    return Rates(
        flops=device.peak(precision) * calibration.product(precision) * calibration.product_part,
        memory=device.memory_bandwidth * calibration.memory_share,
        depth=calibration.product_depth,
        misaligned=calibration.misaligned,
        multiprocessors=device.multiprocessors if calibration.tiles else 0,
        flash=core * calibration.flash_share,
        flash_backward=core * calibration.flash_backward_share,
        flash_fill=calibration.flash_fill,
    )
