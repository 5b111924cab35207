"""The tile at a device's ridge, and a tile on a device that it was not tuned for."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil

from tiledask.errors import KernelError
from tiledask.plan import html
from tiledask.plan.inputs.hardware import Device
from tiledask.tile.choice.bound import Prediction, order, predict
from tiledask.tile.choice.config import Config
from tiledask.tile.choice.configs import candidates
from tiledask.tile.choice.residency import as_device, refusal

__all__ = ["Carried", "CarriedConfig", "carry", "ridge", "ridge_extent"]


def ridge(device: Device | str, peak: str = "fp32") -> float:
    """FLOP per byte of memory at which ``device`` goes from bandwidth to arithmetic.

    >>> round(ridge("H200"), 2)  # 67e12 / 4.8e12
    13.96
    """
    device = as_device(device)
    return device.peak(peak) / device.memory_bandwidth


def ridge_extent(device: Device | str, itemsize: int = 4, peak: str = "fp32") -> int:
    """The least extent of a square tile whose intensity, extent / itemsize, reaches the ridge.

    >>> ridge_extent("H200")
    56
    """
    return ceil(ridge(device, peak) * itemsize)


@dataclass(frozen=True)
class CarriedConfig:
    """A configuration tuned for one device, on another."""

    tuned_for: str
    runs_on: str
    config: Config
    flops_per_second: float
    """FLOP/s at most; 0 if it does not run."""
    best: float
    """FLOP/s at most of the configuration that is the best there."""
    why_not: str = ""
    """Why it does not run there; empty if it does."""

    @property
    def loss(self) -> float:
        """The share of the best that is given away; 1 where it does not run."""
        return 1 - self.flops_per_second / self.best


@dataclass(frozen=True, repr=False)
class Carried:
    """One kernel's best configuration per device, and each of them on every other device."""

    kernel: str
    best: tuple[Prediction, ...]
    """Per device, in the order given."""
    moves: tuple[CarriedConfig, ...]
    refused: tuple[tuple[str, str], ...] = ()
    """(device, why the kernel cannot run there at all)."""

    def _rows(self) -> list[tuple[str, ...]]:
        rows: list[tuple[str, ...]] = []
        for move in self.moves:
            here = f"{move.flops_per_second / 1e12:.4g}"
            loss = "the best" if move.tuned_for == move.runs_on else f"{100 * move.loss:.1f} %"
            rows.append(
                (
                    move.tuned_for,
                    str(move.config),
                    move.runs_on,
                    here if not move.why_not else "-",
                    f"{move.best / 1e12:.4g}",
                    move.why_not or loss,
                )
            )
        return rows

    def __repr__(self) -> str:
        rows = [_HEAD, *self._rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD) - 1)]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=False)) + "  " + row[-1]
            for row in rows
        ]
        return "\n".join(lines + [f"{name}: {why}" for name, why in self.refused])

    def _repr_html_(self) -> str:
        below = "".join(f"<p>{html.words(f'{name}: {why}')}</p>" for name, why in self.refused)
        return html.table(_HEAD, self._rows()) + below


_HEAD = ("tuned for", "tile", "runs on", "TFLOP/s at most", "best there", "loss")


def carry(
    kernel: str,
    devices: Sequence[Device | str],
    m: int,
    n: int,
    k: int,
    dtype: str = "",
) -> Carried:
    """The predicted best of ``kernel`` per device, and what is lost by carrying it to the others.

    By the bounds of `predict`: a loss is the least that retuning could win, were every
    configuration to reach its bound.

    >>> moves = carry("mma_multistage", ["H200", "L4"], 4096, 4096, 4096).moves
    >>> [(move.tuned_for, move.runs_on, round(move.loss, 2)) for move in moves]
    [('H200', 'H200', 0.0), ('H200', 'L4', 0.01), ('L4', 'H200', 0.69), ('L4', 'L4', 0.0)]
    """
    best, refused = [], []
    for device in map(as_device, devices):
        found = candidates(kernel, device, dtype)
        if len(found):
            best.append(order(m, n, k, found, device)[0])
        else:
            refused.append((device.name, found.refused[0][1]))
    if not best:
        raise KernelError(
            f"none of these devices runs {kernel}: "
            + "; ".join(f"{name}: {why}" for name, why in refused)
        )
    moves = []
    for there, here in product(best, best):
        config, device = there.config, here.levels.device
        why = refusal(config, device)
        speed = 0.0 if why else predict(m, n, k, config, device).flops_per_second
        moves.append(
            CarriedConfig(
                there.levels.device.name, device.name, config, speed, here.flops_per_second, why
            )
        )
    return Carried(kernel, tuple(best), tuple(moves), tuple(refused))
