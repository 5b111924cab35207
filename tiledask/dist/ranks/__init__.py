"""Rank programs: one ordinary function on all ranks at once, which talk by collectives.

run.py            run_ranks: a program on the workers of a mesh; its results and its records
threads.py        run_threads: the same program on threads of this process, without Dask
  rank.py         what a program is given: where it stands, its groups, its labels
    group.py      the collectives, counted
      sums.py     sums and maxima in a fixed order
  call.py         what a rank called, and how two calls differ
  records.py      every collective as a record, and their totals
  transport.py    how letters go from rank to rank, and what is said when they don't
    sockets.py    through sockets between processes of one machine
    posts.py      as messages of Dask: to other machines
    nccl.py       arrays from GPU to GPU, where every rank has one; letters only say what comes
      nccl_own.py   NCCL's own collectives, whose bytes are computed
"""
