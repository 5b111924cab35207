"""Rank functions: one ordinary function on all ranks at once, which talk by collectives.

run.py            run_ranks: it on the workers of a mesh; its results and its records
threads.py        run_threads: it on threads of this process, without Dask
  rank_function.py  it on one rank, from its first line to its last; all ranks' results
  rank.py         what it is given: where it stands, its groups, its labels
    group.py          the collectives, agreed on by the ranks that call them
      exchange.py     one of them under way
      halos.py        rows that neighbours lend each other
    program_group.py  those of a program, which was checked before: only its arrays travel
    collectives.py    what both do: rounds, sums in a fixed order, and the record at the end
  mismatch.py     what a rank called, and how two calls differ
  records.py      every collective as a record; their totals, beside what was planned
  ../transport/   how messages go from rank to rank: by threads, datagrams, Dask's messages
    nccl.py       arrays from GPU to GPU, where every rank has one; messages only say what comes
      nccl_own.py   NCCL's own collectives, whose bytes are computed
"""
