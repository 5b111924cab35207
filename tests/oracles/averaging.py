"""The mean gradient of a batch of which each rank has some samples.

rank 0   3 samples, mean gradient g0     3/8 g0 \
rank 1   3 samples, mean gradient g1     3/8 g1  + --> the mean of all 8, on every rank
rank 2   2 samples, mean gradient g2     2/8 g2 /

The mean of g0, g1 and g2 would be another number: a sample of rank 2 would count more. A rank
without samples has gradients of zeros.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiledask.distributed.data_parallel.flat import Name, Packing
from tiledask.distributed.ranks.group import Group
from tiledask.errors import ConfigError
from tiledask.plan.collectives.data_parallel import buckets

__all__ = ["BUCKET", "average", "count_samples"]

BUCKET = 25_000_000
"""Bytes of a bucket (PyTorch's DistributedDataParallel has 25 MiB)."""


def count_samples(group: Group, samples: int) -> int:
    """How many samples all ranks together have: an all_reduce of one number."""
    with group.label("samples"):
        return int(group.all_reduce(np.asarray(samples)))


def average(
    group: Group,
    grads: Mapping[Name, Any],
    samples: int,
    total: int | None = None,
    *,
    bucket_bytes: int = BUCKET,
    algorithm: str | None = None,
    wide: bool = False,
) -> dict[Name, Any]:
    """The gradient of the mean over all samples, by name, from each rank's mean over its own.

    ``samples`` are this rank's, ``total`` all ranks'; left out, it is counted, by one collective
    more. An all_reduce for each bucket; a larger bucket means fewer of them. Each gradient is
    weighted before anything is summed, so that no sum is larger than what is summed. Halves are
    summed as they are, or in float32 and rounded once if ``wide``.

    Raises ConfigError for a batch without samples.

    >>> from tiledask.distributed.ranks.threads import run_threads
    >>> def program(rank):  # samples 0 | 1 | 2, and their mean
    ...     return average(rank.group(), {"w": np.ones(1) * rank.index}, 1)["w"].item()
    >>> run_threads(program, 3).results
    [1.0, 1.0, 1.0]
    """
    total = count_samples(group, samples) if total is None else total
    if not 0 <= samples <= total or not total:
        raise ConfigError(
            f"a mean is over 1 sample or more, of which a rank has some: got {samples} of {total} "
            f"on rank {group.rank}; pass how many samples each rank has"
        )
    packing = Packing.of(grads)
    flat = packing.pack(grads)
    # a Python number: the gradients keep their type
    flat = flat * (samples / total)
    for i, (start, stop) in enumerate(buckets(flat.size, flat.itemsize, bucket_bytes)):
        with group.label(f"bucket {i}"):
            flat[start:stop] = group.all_reduce(flat[start:stop], algorithm=algorithm, wide=wide)
    return packing.unpack(flat)
