"""`make bench-tiles`: our tile kernels beside cuBLAS, torch and Triton on one GPU.

bench.py        the whole run: predict, try, compare, tables, goals, a record
  jobs.py         the products, and who computes them
    ways.py         contenders by name
      peers.py        torch and Triton
  trial.py        our kernels tried where they can do no harm
  rounds.py       inputs, what is right, rounds in which contenders take turns
    clock.py        seconds, on a CPU and on a GPU
    device.py       clock rates, and the device's name
  two_level.py    td.matmul over workers that share the device
  goals.py        what is to be reached; the ladder of kernels
  shown.py        tables, and the ladder under its roofline
"""
