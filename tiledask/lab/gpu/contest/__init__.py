"""Implementations of one product take turns: ours by name, the library, torch.

rounds      inputs, what is right, rounds in which they take turns
ways        the implementations by name
clock       seconds, on a CPU and on a GPU
device      the device's name, and what arithmetic knows of it
ladder      our kernels beside their bounds
two_level   td.matmul over workers that share the device
"""
