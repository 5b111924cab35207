"""Bytes: what every device holds and when, whether it fits, and what would.

fit.py          the verdict, what decides it, and the smallest change that makes it fit
memory.py       one layout: bytes on every stage, and the ledger that explains them
vectorized.py   thousands of layouts: their peaks, for a search
  terms.py        every tensor class at every moment, once, for both
  activations.py  what a forward pass keeps for the backward pass, tensor by tensor
  in_flight.py    of how many micro-batches, by schedule
overhead.py     what a device holds beyond the arithmetic, and the verdict
fixes.py        the nearest layout that fits, and the one on the fewest devices
space.py        what a search may choose, as columns
states.py       the fewest devices, or copies, that hold the states alone
"""
