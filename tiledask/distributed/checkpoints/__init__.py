"""Checkpoints: arrays by name, written under one layout and read under another.

index.py     which box is where, with its checksum
write.py     save_checkpoint: all ranks write at once; whole or not there at all
read.py      open_checkpoint: the newest whole one; each rank reads its pieces, and checks them

    step-00000040/               made under another name and renamed when all is on the disk
      index.json                 shapes, types, boxes, checksums, and what the caller adds
      rank-0.bin ...             the numbers of the boxes that a rank wrote, one after the other
"""

from tiledask.distributed.checkpoints.index import Stored, StoredBox, whole
from tiledask.distributed.checkpoints.read import Checkpoint, open_checkpoint, steps_in
from tiledask.distributed.checkpoints.write import save_checkpoint
from tiledask.plan.products.regions import Region, TensorSlice

__all__ = ["Checkpoint", "Region", "Stored", "StoredBox", "TensorSlice", "open_checkpoint"]
__all__ += ["save_checkpoint", "steps_in", "whole"]
