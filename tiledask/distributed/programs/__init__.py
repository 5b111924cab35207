"""Programs are run: arrays on threads and on Dask workers, what plan writes and reads as a list.

runner.py   a rank goes through its line, instruction by instruction
"""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
