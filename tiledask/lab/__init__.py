"""What people look at: comparison tables, figures, puzzles and the report."""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
