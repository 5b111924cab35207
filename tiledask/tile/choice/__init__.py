"""The choice of tile as arithmetic: what each level moves, what bounds it, what is the fastest.

../config.py  Config: how a kernel tiles; the configurations by kernel; blocks of a multiprocessor
bound.py      levels_of: one formula at four levels; predict: the roofline over them
tuning.py     tune: tiles measured here, beside the predicted order
"""

from tiledask.tile.choice.bound import Level as Level
from tiledask.tile.choice.bound import Levels as Levels
from tiledask.tile.choice.bound import levels_of as levels_of
from tiledask.tile.choice.bound import order as order
from tiledask.tile.choice.bound import predict as predict
from tiledask.tile.choice.bound import ridge as ridge
from tiledask.tile.choice.tuning import tune as tune
from tiledask.tile.config import Config as Config
from tiledask.tile.config import Occupancy as Occupancy
from tiledask.tile.config import candidates as candidates
from tiledask.tile.config import config_of as config_of
from tiledask.tile.config import configs as configs
from tiledask.tile.config import occupancy as occupancy
from tiledask.tile.config import refusal as refusal
