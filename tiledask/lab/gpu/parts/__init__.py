"""The parts of `make gpu`: a module for each subject, which names it in PARTS.

kernels  every kernel once, against float64     fit      claims about memory at 1:10 and 1:1
speed    beside cuBLAS and torch                train    trainings, a pipeline, idle time
product  the two-level product                  tests    the tests that need a GPU
cases    products in the middle of NaN          sizes    what several parts use
"""
