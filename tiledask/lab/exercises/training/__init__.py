"""Exercises about training: what a step moves, faults, loss scales, copies of unequal batches."""
