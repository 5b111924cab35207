"""What is promised of faults, measured.

watching    what it costs to watch workers, and whether a busy one is ever taken for frozen
"""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
