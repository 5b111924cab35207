"""The choice of tile as arithmetic: what each level moves, what bounds it, what is the fastest.

config.py           Config: how a kernel tiles, and its shared memory
  configs.py        the configurations by kernel, and the candidates on a device
residency.py        occupancy: blocks of a multiprocessor, and which limit binds
raster.py           which tiles run together: waves, their tail, what DRAM moves
hierarchy.py        levels_of: one formula at four levels
bound.py            predict: the roofline at every level; order
transfer.py         the tile at the ridge; a tile carried to another device
tuning.py           tune: candidates measured here, beside the predicted order
  timing.py             the seconds of each
  tuning_cache.py       the fastest, in a file of the user's cache
  at_hand.py            the device at hand
chosen.py           tuned: the remembered tile, or the predicted best
"""

from tiledask.tile.choice.bound import Prediction, order, predict
from tiledask.tile.choice.chosen import Chosen, tuned
from tiledask.tile.choice.config import Config
from tiledask.tile.choice.configs import Candidates, candidates, config_of, configs
from tiledask.tile.choice.hierarchy import Level, Levels, levels_of
from tiledask.tile.choice.raster import DramTraffic, Waves, dram_traffic, raster, waves
from tiledask.tile.choice.residency import Occupancy, occupancy
from tiledask.tile.choice.transfer import (
    Carried,
    CarriedConfig,
    carry,
    ridge,
    ridge_extent,
)
from tiledask.tile.choice.tuning import Trial, Tuning, rank_correlation, tune

__all__ = [
    "Candidates",
    "Carried",
    "CarriedConfig",
    "Chosen",
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
    "carry",
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
    "ridge_extent",
    "tune",
    "tuned",
    "waves",
]
