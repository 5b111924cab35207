"""The rates of one device: a datasheet's numbers times the shares that a calibration says."""

from tiledask.plan.inputs.hardware import Device
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.inputs.run import precision_of
from tiledask.plan.timing.calibration import Calibration
from tiledask.plan.timing.roofline import Rates

__all__ = ["rates_of"]


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
