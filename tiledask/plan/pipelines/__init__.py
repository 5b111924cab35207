"""Schedules: orders of actions, what is wrong with one, when everything happens, how idle it is."""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
