"""DeepSpeed's own estimate of what ZeRO needs, shown as such: states alone, host included."""

from typing import NamedTuple

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
) -> DeepSpeedEstimate:
    """What DeepSpeed estimates for the states of ``parameters`` under ZeRO-2 or ZeRO-3.

    It counts neither activations, nor what is gathered beyond ``largest_layer`` (parameters of
    the largest layer, at 4 bytes), nor any overhead, which is why a GPU shows more: an issue
    (DeepSpeed #4527) reports 0.49 estimated and 14.3 GiB measured. For what tiledask expects
    see ``fits``. Source: DeepSpeed documentation, memory requirements
    (docs/code-docs/source/memory.rst), with weights that never lie whole in host memory.

    >>> own = deepspeed_estimate(2_851_000_000, 32_000_000)
    >>> [round(n / 2**30, 2) for n in own]
    [6.09, 1.43]
    """
    gpus = gpus_per_node * nodes
    if zero == 2 and offload_optimizer:
        host = parameters * max(4 * gpus, 16)
        return DeepSpeedEstimate(2 * parameters, int(host * BUFFERS))
    if zero == 2:
        host = parameters * 4 * gpus_per_node
        return DeepSpeedEstimate(4 * parameters + 16 * parameters // gpus, int(host * BUFFERS))
    gathered = 4 * largest_layer
    if not offload_optimizer:
        host = gathered * gpus_per_node
        return DeepSpeedEstimate(gathered + 18 * parameters // gpus, int(host * BUFFERS))
    each = (18 if offload_weights else 16) / nodes
    device = gathered + (0 if offload_weights else 2 * parameters // gpus)
    return DeepSpeedEstimate(device, int(parameters * each * BUFFERS))
