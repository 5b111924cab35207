"""Checkpoints: arrays by name, written under one layout and read under another.

write.py     save_checkpoint: all ranks write at once; whole or not there at all
index.py     open_checkpoint: the newest whole one; each rank reads its pieces, and checks them

    step-00000040/               made under another name and renamed when all is on the disk
      index.zip                  shapes, types and boxes
      rank-0.zip ...             the numbers of each box that a rank wrote, and what it adds
"""

from tiledask.distributed.checkpoints.index import (
    Checkpoint,
    folder_of,
    open_checkpoint,
    steps_in,
    whole,
)
from tiledask.distributed.checkpoints.write import save_checkpoint
from tiledask.plan.products.regions import TensorSlice

__all__ = ["Checkpoint", "TensorSlice", "folder_of", "open_checkpoint", "save_checkpoint"]
__all__ += ["steps_in", "whole"]
