"""C = A @ B over workers: every algorithm planned beside the others, and the chosen one run.

matmul.py        td.matmul and td.explain; runs the chosen plan
explain.py       every algorithm's traffic, memory and time, which is chosen, what would fit instead
memory.py        bytes that a plan needs on every rank
rates.py         this cluster's FLOP/s, bytes/s and overheads, measured
worker.py        one task for each rank: it reads others' blocks and leaves its own
panels.py        the loop over panels: the next ones are fetched while one is multiplied
lazy.py          x @ y of dask.arrays
check.py         td.check_product: Freivalds' check
"""
