"""Rank functions: one ordinary function on all ranks at once, which talk by collectives.

run.py            run_ranks: it on the workers of a mesh; its results and its records
threads.py        run_threads: it on threads of this process, without Dask
  rank_function.py  it on one rank, from its first line to its last; all ranks' results
  rank.py         what it is given: where it stands, its groups, its labels
    group.py        the collectives, agreed on by the ranks that call them, or checked before
      exchange.py   one of them under way, and the record at the end
      rounds.py     rounds, and sums in a fixed order
  mismatch.py     what a rank called, and how two calls differ
  records.py      every collective as a record; their totals, beside what was planned
  ../transport/   how messages go from rank to rank: by threads, datagrams, Dask's messages
"""
