"""Bytes: what every device holds and when, whether it fits, and what would."""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
