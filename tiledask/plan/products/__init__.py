"""One matrix product over many ranks: placements, pieces that move, cost, bounded memory."""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
