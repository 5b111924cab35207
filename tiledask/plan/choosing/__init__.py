"""Which layout: all of them searched, what binds, what is wrong with one; claims worked out."""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
