"""The choice of tile as arithmetic: what each level moves, what bounds it, what is the fastest.

config.py           Config: how a kernel tiles, and its shared memory
  configs.py        the configurations by kernel, and the candidates on a device
residency.py        occupancy: blocks of a multiprocessor, and which limit binds
raster.py           which tiles run together: waves, their tail, what DRAM moves
hierarchy.py        levels_of: one formula at four levels
bound.py            predict: the roofline at every level; order; the ridge
tuning.py           tune: candidates measured here, beside the predicted order
"""

from tiledask.tile.choice.bound import Prediction, order, predict, ridge
from tiledask.tile.choice.config import Config
from tiledask.tile.choice.configs import candidates, config_of, configs
from tiledask.tile.choice.hierarchy import Level, Levels, levels_of
from tiledask.tile.choice.raster import DramTraffic, Waves, dram_traffic, raster, waves
from tiledask.tile.choice.residency import Occupancy, occupancy
from tiledask.tile.choice.tuning import Trial, Tuning, rank_correlation, tune

__all__ = [
    "Config",
    "DramTraffic",
    "Level",
    "Levels",
    "Occupancy",
    "Prediction",
    "Trial",
    "Tuning",
    "Waves",
    "candidates",
    "config_of",
    "configs",
    "dram_traffic",
    "levels_of",
    "occupancy",
    "order",
    "predict",
    "rank_correlation",
    "raster",
    "ridge",
    "tune",
    "waves",
]
