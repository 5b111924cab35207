"""What brings a cluster back when a part of it is lost.

supervisor.py     every slot of a started cluster has a worker again, whatever became of the last
"""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
