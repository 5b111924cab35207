"""Bytes: what every device holds and when, whether it fits, and what would.

fit.py          the verdict, what decides it, and the smallest change that makes it fit
states.py       the fewest devices, or copies, that hold the states alone
memory.py       one layout: bytes on every stage, and the ledger that explains them
vectorized.py   thousands of layouts: their peaks, for a search
  terms.py        every tensor class at every moment, once, for both
  items.py        parameters of a layer, the embedding, the head
  activations.py  what a forward pass keeps for the backward pass, tensor by tensor
  in_flight.py    of how many micro-batches, by schedule
overhead.py     what a device holds beyond the arithmetic: CUDA context, NCCL, allocator;
                what a framework holds stands in its file (plan/timing/calibration.py, Holds)
fixes.py        the nearest layout that fits, as a value and as a sentence
  fewest.py       the fewest devices
"""
