"""The fewest devices of a cluster on which any layout trains a batch, and all layouts there."""

from typing import Any

from tiledask.plan.choosing.search import Plans, search
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.load import as_cluster, as_model
from tiledask.plan.inputs.model import Model

__all__ = ["search_fewest"]

AT_ONCE = 8
"""Numbers of devices that are looked at together."""


def search_fewest(
    model: Model | str, cluster: ClusterSpec | str, global_batch: int, **options: Any
) -> Plans:
    """The Plans on the fewest devices of ``cluster`` on which a layout fits; those on all of them
    where none does.

    ``options`` are those of :func:`tiledask.search` but ``devices``. Every number of devices is
    looked at, from that whose memory holds the states alone.

    >>> plans = search_fewest("llama-2-13b", "64xA100-40GB", 64)
    >>> plans.best.layout.devices, plans.best.verdict
    (7, 'fits')
    """
    model, cluster = as_model(model), as_cluster(cluster)
    run = model, cluster, global_batch
    recipe = search(*run, devices=(1,), **options).recipe
    states = model.parameters * recipe.bytes_per_parameter
    least = max(1, int(states // cluster.device.memory_bytes))
    for first in range(least, cluster.devices + 1, AT_ONCE):
        some = range(first, min(first + AT_ONCE, cluster.devices + 1))
        found = search(*run, devices=some, **options).fewest
        if found:
            return search(*run, devices=(found,), **options)
    return search(*run, **options)
