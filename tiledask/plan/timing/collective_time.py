"""Seconds of a collective among ranks that sit in nodes: bytes over the narrowest link.

devices 0 1 2 3 | 4 5 6 7 | ...      a group takes every ``stride``-th device:
group   x   x   | x   x   |          stride 2 of nodes of 4: two members a node

Members in one node use its links only. Across nodes a ring leaves each node as often as the
group has members there, each through its own adapter (NCCL builds one ring an adapter). Nothing
takes any time in a group of one.
"""

import numpy as np

from tiledask.plan.arrays import Values
from tiledask.plan.inputs.hardware import ClusterSpec

__all__ = ["all_gather", "all_reduce", "bandwidth", "exchange", "members", "p2p", "zero_passes"]


def members(size: Values, stride: Values, cluster: ClusterSpec) -> Values:
    """Members of a group of ``size`` devices, ``stride`` apart, that share a node.

    >>> from tiledask.plan.inputs.hardware import load_cluster
    >>> dgx = load_cluster("64xA100-80GB")
    >>> [int(members(8, stride, dgx)) for stride in (1, 2, 8)]
    [8, 4, 1]
    """
    here: Values = np.minimum(size, np.maximum(1, cluster.devices_per_node // stride))
    return here


def bandwidth(
    size: Values, stride: Values, cluster: ClusterSpec, own_adapter: bool = False
) -> Values:
    """Bytes/s at which each member passes a ring's data on; through its own adapter if one ring."""
    here = members(size, stride, cluster)
    within, between = cluster.within_node.reached, cluster.between_nodes.reached
    shared = between if own_adapter else np.minimum(within, here * between)
    return np.where(here >= size, within, shared)


def latency(size: Values, stride: Values, cluster: ClusterSpec, ring: bool = False) -> Values:
    """Seconds of a message of no bytes: up a tree in a node, up one of nodes or round them."""
    here = members(size, stride, cluster)
    nodes = np.maximum(size / here, 1)
    hops = nodes - 1 if ring else np.ceil(np.log2(nodes))
    inside = np.log2(np.maximum(here, 1)) * cluster.within_node.latency
    return inside + hops * cluster.between_nodes.latency


def all_gather(
    whole: Values,
    size: Values,
    stride: Values,
    cluster: ClusterSpec,
    own_adapter: bool = False,
    calls: Values = 1,
) -> Values:
    """Seconds until each of ``size`` ranks holds all ``whole`` bytes; reduce-scatter is equal. A
    ring moves (n-1)/n of the whole through each rank (Thakur et al. 2005, section 4), and a message
    round all nodes, in each of ``calls`` that the bytes are cut into."""
    moved = whole * (size - 1) / size / bandwidth(size, stride, cluster, own_adapter)
    waited = calls * latency(size, stride, cluster, ring=True)
    return np.where(np.asarray(size) > 1, moved + waited, 0.0)


def all_reduce(whole: Values, size: Values, stride: Values, cluster: ClusterSpec) -> Values:
    """Seconds of a sum over ``size`` ranks: the bytes of a reduce-scatter and an all-gather, up and
    down a tree."""
    moved = whole * (size - 1) / size / bandwidth(size, stride, cluster)
    return np.where(np.asarray(size) > 1, 2 * (moved + latency(size, stride, cluster)), 0.0)


def exchange(
    token: Values,
    copies: int,
    size: Values,
    stride: Values,
    cluster: ClusterSpec,
    share: float,
    most_nodes: float,
) -> Values:
    """Seconds of an all-to-all at ``share`` of the links' bandwidth: ranks send ``token`` bytes
    each, ``copies`` times over, to experts on ``size`` ranks. ``most_nodes``: a token crosses to a
    node once, and to so many at most (DeepEP, DeepSeek-V3); 0: each copy crosses by itself."""
    here = members(size, stride, cluster)
    nodes = size / here
    inside = token * copies * (here - 1) / size / (share * cluster.within_node.bytes_per_second)
    crossing: Values = float(copies)
    if most_nodes:
        inside = inside * nodes  # all copies are handed on within the node that they come to
        crossing = np.minimum(nodes * (1 - (1 - 1 / nodes) ** copies), most_nodes)
    outside = token * crossing * (nodes - 1) / nodes
    outside = outside / (share * cluster.between_nodes.bytes_per_second)
    moved = np.maximum(inside, outside) + latency(size, stride, cluster)
    return np.where(np.asarray(size) > 1, moved, 0.0)


def p2p(moved: Values, size: Values, stride: Values, cluster: ClusterSpec) -> Values:
    """Seconds from one member of the chain to the next; between nodes if any link is."""
    near, far = cluster.within_node, cluster.between_nodes
    here, there = (moved / link.reached + link.latency for link in (near, far))
    seconds = np.where(members(size, stride, cluster) >= size, here, there)
    return np.where(np.asarray(size) > 1, seconds, 0.0)


def zero_passes(zero: Values, microbatches: Values = 1) -> tuple[Values, Values]:
    """(of gradients, of weights): how often a step of a stage of ZeRO moves all of them through a
    ring, numbers or columns. Each time every rank sends (n-1)/n of the bytes, in a reduce-scatter
    or an all-gather; an all-reduce is one of each.

    From ZeRO-2 on the gradients are summed, and in ZeRO-3 the weights gathered twice, for every
    micro-batch (Rajbhandari et al. 2020, arXiv:1910.02054, section 7).

    >>> [tuple(map(int, zero_passes(zero, microbatches=8))) for zero in range(4)]
    [(2, 0), (1, 1), (8, 1), (8, 16)]
    """
    stages = [np.equal(zero, stage) for stage in range(4)]
    gradients = np.select(stages, [2, 1, microbatches, microbatches])
    return gradients, np.select(stages, [0, 1, 1, 2 * np.asarray(microbatches)])
