"""Layers cut into stages: the best split, well-known heuristics, and a judge of answers."""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
