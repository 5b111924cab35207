"""DeepSpeed's own estimate of what ZeRO needs, shown as such: states alone, host included."""

from typing import NamedTuple

from tiledask.errors import ConfigError
from tiledask.plan.whole import whole_number

__all__ = ["DeepSpeedEstimate", "deepspeed_estimate"]

BUFFERS = 1.5
"""Factor that the estimator puts on host memory for buffers."""


class DeepSpeedEstimate(NamedTuple):
    """What DeepSpeed's estimator prints, in bytes; it prints GiB and calls them GB."""

    device: int
    """Bytes on each GPU."""
    host: int
    """Bytes of each node's host memory."""


def deepspeed_estimate(
    parameters: int,
    largest_layer: int = 0,
    *,
    zero: int = 3,
    gpus_per_node: int = 8,
    nodes: int = 1,
    offload_optimizer: bool = False,
    offload_weights: bool = False,
    zero_init: bool = True,
) -> DeepSpeedEstimate:
    """What DeepSpeed estimates for the states of ``parameters`` under ZeRO-2 or ZeRO-3.

    It counts neither activations, nor what is gathered beyond ``largest_layer`` (parameters of
    the largest layer, at 4 bytes), nor any overhead, which is why a GPU shows more: an issue
    (DeepSpeed #4527) reports 0.49 estimated and 14.3 GiB measured. For what tiledask expects
    see ``fits``. ``zero_init``: the weights never lie whole in host memory. Source: DeepSpeed
    documentation, memory requirements (docs/code-docs/source/memory.rst).

    >>> own = deepspeed_estimate(2_851_000_000, 32_000_000)
    >>> [round(n / 2**30, 2) for n in own]
    [6.09, 1.43]
    """
    parameters = whole_number("parameters", parameters, 1)
    gpus_per_node, nodes = (
        whole_number("gpus_per_node", gpus_per_node, 1),
        whole_number("nodes", nodes, 1),
    )
    largest_layer = whole_number("largest_layer", largest_layer, 0)
    if zero not in (2, 3) or isinstance(zero, bool):
        raise ConfigError(f"DeepSpeed estimates ZeRO 2 and 3, got zero={zero!r}")
    if offload_weights and not (zero == 3 and offload_optimizer):
        raise ConfigError(
            "weights are offloaded with zero=3 and together with the optimizer; set "
            "offload_optimizer=True"
        )
    gpus = gpus_per_node * nodes
    if zero == 2 and offload_optimizer:
        host = int(parameters * max(4 * gpus, 16) * BUFFERS)
        return DeepSpeedEstimate(2 * parameters, host)
    if zero == 2:
        device = 4 * parameters + 16 * parameters // gpus
        return DeepSpeedEstimate(device, int(parameters * 4 * gpus_per_node * BUFFERS))
    on_host = 18 if offload_weights else 16
    if not offload_optimizer:
        device = 4 * largest_layer + 18 * parameters // gpus
        first = largest_layer if zero_init else parameters
        return DeepSpeedEstimate(device, int(4 * first * gpus_per_node * BUFFERS))
    device = 4 * largest_layer + (0 if offload_weights else 2 * parameters // gpus)
    each = on_host / nodes if zero_init else max(4 * gpus_per_node, on_host / nodes)
    return DeepSpeedEstimate(device, int(parameters * each * BUFFERS))
