"""The planner against published numbers, and other tools against the same ones.

published   every published number, by its id
measured    memory that devices showed, beside the estimate
verdicts    set-ups that ran or did not, beside what we say of them

`make accuracy` (page.py) writes ACCURACY.md of memory.py, time.py, stacks.py and exact.py, tables
of rows.py.
"""

from tiledask.lab.accuracy.memory import measured, verdicts
from tiledask.lab.accuracy.rows import published
from tiledask.submodules import submodules

__all__ = ["measured", "published", "verdicts"]

__getattr__, __dir__ = submodules(__name__, __path__)
