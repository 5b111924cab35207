"""What a memory plan claims, run: workers hold the states, do a step, are refused too much."""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
