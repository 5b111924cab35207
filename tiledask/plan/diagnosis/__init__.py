"""From a trace of what devices did to the plan behind it, and to what would be faster."""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
