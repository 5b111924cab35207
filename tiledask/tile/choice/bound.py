"""How fast a kernel can be at most: roofline, predicted order, ridge."""

from collections.abc import Iterable
from dataclasses import dataclass

from tiledask.errors import KernelError
from tiledask.plan.inputs.hardware import Device
from tiledask.plan.units import format_seconds
from tiledask.tile.choice.config import Config
from tiledask.tile.choice.configs import config_of
from tiledask.tile.choice.hierarchy import Levels, levels_of
from tiledask.tile.choice.residency import Occupancy, as_device, occupancy, refusal

__all__ = ["Prediction", "order", "predict", "ridge"]


@dataclass(frozen=True)
class Prediction:
    """The least time of a product, were everything to overlap and every level at its peak.

    The bytes from DRAM rest on the rule of `dram_traffic`; those of the other levels, and the
    arithmetic, are the kernel's whatever L2 does.
    """

    levels: Levels
    occupancy: Occupancy

    @property
    def config(self) -> Config:
        return self.levels.config

    @property
    def seconds(self) -> float:
        """Seconds at least."""
        return self.levels.seconds

    @property
    def flops_per_second(self) -> float:
        """FLOP/s at most, of the product's own 2 m n k."""
        return 2 * self.levels.m * self.levels.n * self.levels.k / self.seconds

    @property
    def binding(self) -> str:
        """ "arithmetic", or the name of the level that takes longest."""
        return self.levels.binding

    @property
    def unbounded(self) -> tuple[str, ...]:
        """Levels of unknown bandwidth, which may be slower still."""
        return self.levels.unbounded

    def __repr__(self) -> str:
        unknown = f"; {', '.join(self.unbounded)} not bounded" if self.unbounded else ""
        return (
            f"{self.config} on {self.levels.device.name}: at most "
            f"{self.flops_per_second / 1e12:.4g} TFLOP/s ({format_seconds(self.seconds)}), bound "
            f"by {self.binding}{unknown}"
        )


def predict(
    m: int, n: int, k: int, config: Config | str, device: Device | str, dtype: str = ""
) -> Prediction:
    """The bound for ``config``, or a kernel's own for ``dtype``, on ``device``.

    Raises KernelError with the reason where the device cannot run it.

    >>> predict(8192, 8192, 8192, "smem_tiled", "H200").binding
    'shared memory -> registers'
    """
    config, device = config_of(config, dtype), as_device(device)
    if why := refusal(config, device):
        raise KernelError(f"{config} cannot run on {device.name}: {why}")
    return Prediction(levels_of(m, n, k, config, device), occupancy(config, device))


def order(
    m: int, n: int, k: int, candidates: Iterable[Config], device: Device | str
) -> tuple[Prediction, ...]:
    """The predictions of ``candidates``, the fastest first.

    Those that one level bounds alike are told apart by what the other levels take, and then by the
    bytes out of L2.
    """
    found = [predict(m, n, k, config, device) for config in candidates]
    return tuple(sorted(found, key=_rank))


def _rank(prediction: Prediction) -> tuple[float, float, int, int]:
    levels = prediction.levels
    return (
        prediction.seconds,
        sum(levels.times.values()),
        levels["L2 -> shared memory"].moved,
        -levels.config.stages,
    )


def ridge(device: Device | str, peak: str = "fp32") -> float:
    """FLOP per byte of memory at which ``device`` goes from bandwidth to arithmetic.

    >>> round(ridge("H200"), 2)  # 67e12 / 4.8e12
    13.96
    """
    device = as_device(device)
    return device.peak(peak) / device.memory_bandwidth
