"""The planner against published numbers, and other tools against the same ones."""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
