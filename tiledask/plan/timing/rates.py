"""What programs reach of a datasheet's numbers: the calibrated shares, one file a generation."""

from dataclasses import dataclass
from functools import lru_cache

from tiledask.errors import ConfigError
from tiledask.plan.data import read_named
from tiledask.plan.inputs.hardware import Device
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.timing.roofline import Rates

__all__ = ["Calibration", "load_calibration", "precision_of", "rates_of"]


@dataclass(frozen=True)
class Calibration:
    """Shares of a device generation and of the training software of its years.

    >>> load_calibration("a100").tensor_overlap
    0.0
    """

    name: str
    product_share: float
    """Of the peak, in a deep matrix product that fills the device."""
    product_depth: float
    """The k at which a product reaches half of that."""
    memory_share: float
    """Of the memory bandwidth, in element-wise kernels."""
    flash_share: float
    """Of the peak, in a fused attention core; forward."""
    flash_backward_share: float
    sum_overlap: float
    """Part of the backward sums over tp that hide behind the gradients of the weights."""
    tensor_overlap: float
    """Part of sequence-parallel collectives that hide, cut into pieces, behind the products."""
    pipeline_overlap: float
    """Part of the transfers between stages that other micro-batches hide."""
    data_overlap: float
    """Part of the reduction of gradients that the last backward pass may hide."""
    calibrated: tuple[str, ...] = ()
    """Ids of the published cases that the shares were fitted to; the others check them."""
    source: str = ""
    """How each share was found."""


_SHARES = tuple(name for name, kind in Calibration.__annotations__.items() if kind is float)


@lru_cache(maxsize=16)
def _load(name: str) -> Calibration:
    fields = read_named("calibration", name)
    shares = {key: fields.number(key) for key in _SHARES}
    found = Calibration(
        name=fields.text("name"),
        **shares,
        calibrated=fields.texts("calibrated"),
        source=fields.text("source"),
    )
    fields.done()
    for key, value in shares.items():
        if key != "product_depth" and not value <= 1:
            raise fields.fail(key, f"must be at most 1, got {value:g}")
    return found


def load_calibration(calibration: str | Calibration) -> Calibration:
    """The shipped calibration of that name; a Calibration comes back as it is."""
    return calibration if isinstance(calibration, Calibration) else _load(calibration)


def precision_of(device: Device, recipe: Recipe) -> str:
    """The precision of ``device`` that the products of ``recipe`` run in.

    >>> from tiledask.plan.inputs.hardware import load_device
    >>> from tiledask.plan.inputs.recipes import load_recipe
    >>> [precision_of(load_device(name), load_recipe("mixed-adam-16")) for name in ("H100", "T4")]
    ['bf16', 'fp16']
    """
    order = {4: ("tf32", "fp32"), 2: ("bf16", "fp16"), 1: ("fp8",)}.get(recipe.compute_bytes, ())
    peaks = dict(device.peak_flops)
    found = next((name for name in order if name in peaks), None)
    if found is None:
        raise ConfigError(
            f"{recipe.name} computes with {recipe.compute_bytes} bytes a number, for which "
            f"{device.name} has no peak; it has {', '.join(peaks)}"
        )
    return found


def rates_of(device: Device, recipe: Recipe, calibration: Calibration) -> Rates:
    """What ``device`` reaches in the precision that ``recipe`` computes in."""
    peak = device.peak(precision_of(device, recipe))
    return Rates(
        flops=peak * calibration.product_share,
        memory=device.memory_bandwidth * calibration.memory_share,
        depth=calibration.product_depth,
        multiprocessors=device.multiprocessors,
        flash=peak * calibration.flash_share,
        flash_backward=peak * calibration.flash_backward_share,
    )
