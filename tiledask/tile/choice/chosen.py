"""The tile to use: the one that was measured here as the fastest, or else the predicted best."""

from dataclasses import dataclass

from tiledask.errors import KernelError
from tiledask.plan.inputs.hardware import Device
from tiledask.tile.backend import as_dtype, namespace, probe
from tiledask.tile.choice.at_hand import cpu_name, device_at_hand
from tiledask.tile.choice.bound import order
from tiledask.tile.choice.configs import candidates
from tiledask.tile.choice.residency import as_device
from tiledask.tile.choice.tuning import with_tile
from tiledask.tile.choice.tuning_cache import key_of, recall
from tiledask.tile.cuda.hopper_tile import AnyTile

__all__ = ["Chosen", "tuned"]


@dataclass(frozen=True)
class Chosen:
    """A tile, and where it comes from."""

    tile: AnyTile
    source: str
    """"measured", "predicted", or "default" where there is nothing to predict by."""
    why: str


def tuned(
    kernel: str,
    m: int,
    n: int,
    k: int,
    dtype: str = "float32",
    device: Device | str | None = None,
) -> Chosen:
    """The tile for a product [m, k] x [k, n]: remembered from `tune`, or else predicted.

    ``device`` is the one at hand unless named; what is remembered goes by the name that the driver
    gives it, so that for a device by its shipped name the answer is a prediction. On a CPU nothing
    is predicted but bytes, of which the largest tile moves the fewest however small the cache is:
    without a measurement its tile is the kernel's own.
    """
    info, usual = with_tile(kernel)
    dtype = as_dtype(dtype).name
    name, facts = _at(device, info.arrays == "cupy")
    found = recall(key_of(name, kernel, dtype, m, n, k))
    if found:
        tile, entry = found
        product = "x".join(map(str, entry.get("product", ())))
        return Chosen(tile, "measured", f"on {name}, {entry.get('measured', '')}, for {product}")
    if facts is None:
        return Chosen(usual, "default", f"nothing was measured on {name}; see tune")
    allowed = candidates(kernel, facts, dtype)
    built = [c for c in allowed if not info.tiles or c.block in info.tiles]
    if not built:
        why = allowed.refused[0][1] if allowed.refused else "none of its tiles is a candidate"
        raise KernelError(f"kernel {kernel!r} cannot run on {facts.name}: {why}")
    best = order(m, n, k, built, facts)[0]
    return Chosen(best.config.block, "predicted", repr(best))


def _at(device: Device | str | None, gpu: bool) -> tuple[str, Device | None]:
    """The name under which tiles are remembered, and what is known to predict by."""
    if device is not None:
        facts = as_device(device)
        return facts.name, facts
    if not gpu:
        return cpu_name(), None
    if not probe().usable:
        raise KernelError(
            f"no GPU is at hand ({probe().reason}); name one to predict for: device='H200'"
        )
    found = device_at_hand()
    return probe().devices[namespace("cupy").cuda.Device().id].name, found
