"""The choice of tile as arithmetic: what each level moves, what bounds it, what is the fastest.

config.py           Config: how a kernel tiles, and its shared memory
  configs.py        the configurations by kernel, and the candidates on a device
residency.py        occupancy: blocks of a multiprocessor, and which limit binds
waves.py            which tiles run together, and what they load from DRAM
bound.py            levels_of: one formula at four levels; predict: the roofline over them
tuning.py           tune: candidates measured here, beside the predicted order
"""

from tiledask.tile.choice.bound import Level, Levels, levels_of, order, predict, ridge
from tiledask.tile.choice.config import Config
from tiledask.tile.choice.configs import candidates, config_of, configs
from tiledask.tile.choice.residency import Occupancy, occupancy
from tiledask.tile.choice.tuning import Trial, Tuning, rank_correlation, tune

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
    "rank_correlation",
    "ridge",
    "tune",
]
