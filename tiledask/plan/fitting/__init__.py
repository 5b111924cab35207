"""Bytes: what every device holds and when, whether it fits, and what would.

fit.py          the verdict, what decides it, and the smallest change that makes it fit
memory.py       one layout: bytes on every stage, and the ledger that explains them
vectorized.py   thousands of layouts: their peaks, for a search
  terms.py        every tensor class at every moment, once, for both
  activations.py  what a forward pass keeps for the backward pass, and of how many micro-batches
overhead.py     what a device holds beyond the arithmetic: CUDA context, NCCL, allocator
fixes.py        the nearest layout that fits, as a value and as a sentence; the fewest devices
space.py        the layouts among which search and fixes look
"""
