"""C = A @ B over workers: every algorithm planned beside the others, and the chosen one run.

matmul.py      td.matmul and td.explain; runs the chosen plan
explain.py     every algorithm's traffic, memory and time, and why one is chosen
needed.py      bytes that a plan needs on every rank
rates.py       this cluster's FLOP/s, bytes/s and overheads, measured
refusal.py     what would fit instead
operands.py    what two operands must have in common
page.py        what the dashboard's page shows of it
line.py        the engine: whoever multiplies goes through a line of a product's program
multiply.py    what a rank does: it reads others' blocks and leaves its own
lazy.py        x @ y of dask.arrays
check.py       td.check_product: Freivalds' check
"""
