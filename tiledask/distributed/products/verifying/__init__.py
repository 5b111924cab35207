"""Whether a product was multiplied right.

by_blocks.py    the blocks of a product that ran: what is damaged is found, and named
by_signs.py     blocks on ranks: by random signs, from what the owners have (Freivalds)
exact_rows.py   rows in float64, where it is to be told from rounding
tiles.py        tiles of files and lazy products, from the panels as they come
on_entry.py     the blocks are those that their arrays say
"""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
