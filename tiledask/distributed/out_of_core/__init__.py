"""Matrices in files, and their product panel by panel in less memory than any of them takes.

stored.py        open_array, create_array: StoredArray
stored_file.py   where a matrix is and how it lies there; stored_npy.py, stored_zarr.py read it
streamed.py      the product: planned, begun or resumed, run
stream_tiles.py  what one worker does for it
unfinished.py    the tiles that it has finished, until all are
folder.py        a folder at a path or a URL; zarr_store.py what zarr opens by URL
disk.py          what a disk refuses, in words
"""
