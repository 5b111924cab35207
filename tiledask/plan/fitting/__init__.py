"""Bytes: what every device holds and when, whether it fits, and what would.

fit.py          the verdict, what decides it, and the smallest change that makes it fit
memory.py       the ledger: a row per stage, tensor class and moment
  states.py       weights and what training keeps for each, sharded by ZeRO
  activations.py  what a forward pass keeps for the backward pass, tensor by tensor
  in_flight.py    of how many micro-batches, by schedule
  transient.py    what comes and goes within a step
overhead.py     what a device holds beyond the arithmetic: CUDA context, NCCL, allocator
vectorized.py   the peaks of thousands of layouts at once
repair.py       the nearest layout that fits
  fixes.py        a change as a value and as a sentence
  fewest.py       the fewest devices
deepspeed.py, replay.py   DeepSpeed's own estimate; allocations one by one under a cap
"""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
