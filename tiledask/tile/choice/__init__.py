"""The choice of tile as arithmetic: what each level moves, what bounds it, what is the fastest.

config.py      Config: how a kernel tiles, and its shared memory; the configurations by kernel
occupancy.py   blocks of a multiprocessor, the limit that binds, what runs together in waves
bound.py       levels_of: one formula at four levels; predict: the roofline over them
tuning.py      tune: candidates measured here, beside the predicted order
"""

from tiledask.tile.choice.bound import Level, Levels, levels_of, order, predict, ridge
from tiledask.tile.choice.config import Config, config_of, configs
from tiledask.tile.choice.occupancy import Occupancy, candidates, occupancy, refusal
from tiledask.tile.choice.tuning import Trial, Tuning, tune

__all__ = [
    "Config",
    "Level",
    "Levels",
    "Occupancy",
    "Trial",
    "Tuning",
    "candidates",
    "config_of",
    "configs",
    "levels_of",
    "occupancy",
    "order",
    "predict",
    "refusal",
    "ridge",
    "tune",
]
