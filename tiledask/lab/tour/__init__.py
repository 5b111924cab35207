"""The whole story in one run: four parts, each predicted, simulated and measured.

fit.py      a 200 B model on 40 GB GPUs, and the same question at 1:1000 with real caps
product.py  the two-level tiled product over the workers
layers.py   24 layers on 4 devices
idle.py     idle time: naive, GPipe, 1F1B
story.py    runs them, prints the tables, writes the report
"""

from tiledask.lab.tour.story import tour

__all__ = ["tour"]
