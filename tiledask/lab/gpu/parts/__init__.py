"""The parts of `make gpu`: a module for each subject, which names it in PARTS.

machine  GPUs, their clocks and bandwidths      product  the two-level product
kernels  every kernel against float64           fit      claims about memory at 1:10 and 1:1
speed    beside cuBLAS, torch and Triton        train    trainings, a pipeline, idle time
cases    products in the middle of NaN          tests    the tests that need a GPU
                                                sizes, bars  what several parts use
"""
