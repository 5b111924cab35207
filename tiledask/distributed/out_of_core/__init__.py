"""Matrices in files, and their product panel by panel in less memory than any of them takes.

stored.py        open_array, create_array: StoredArray; zarr_chunks.py has those of zarr
multiply.py      the product: planned, begun or resumed, run, a task for each tile
journal.py       the tiles that are finished, until all are
disk.py          what a disk refuses, in words
"""
