"""Comparisons with peers on this machine: the same work, the same run, interleaved, medians.

product, files    td.matmul beside one process and dask.array          (peers.py)
schedules         the simulator beside others                          (schedule_peers.py)
idle              idle time of every schedule, measured and simulated
search            the search beside calculon's                         (search_peer.py)
tiles             tile kernels beside cuBLAS, torch and Triton
records           goals beside what was reached, and the numbers as JSON

`make bench` and its kin run them.
"""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
