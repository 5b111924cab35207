"""Seconds of a training step: products, collectives, pipeline, update."""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
