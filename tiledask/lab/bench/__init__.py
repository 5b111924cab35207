"""Comparisons with peers on this machine: the same work, the same run, interleaved, medians."""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
