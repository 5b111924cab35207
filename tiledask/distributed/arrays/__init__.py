"""Arrays whose blocks live on the workers of a mesh: made, moved, brought back.

mesh.py          Mesh: slots of a cluster as ranks in rows and columns
array.py         ShardedArray, to_numpy
creation.py      distribute, from_function, from_dask; they load products/matmul.py, for A @ B
redistribute.py  from one placement to another: all_gather, reduce_scatter, all_to_all, ...
"""
