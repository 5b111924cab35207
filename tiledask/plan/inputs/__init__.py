"""What a plan starts from: a model, its weights, a cluster, a recipe, a layout."""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
