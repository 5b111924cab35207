"""The walkthroughs' exercises: judges that run an answer, or work out what it is worth.

exercise         a judge becomes an exercise, with its form and hints
products, tiles  what lies where, and in which tiles; kernels: functions for one product
levels           which level is at fault where cores wait; run on workers, measured
layers, sums, convolutions, layer_too_large     layers split over ranks
skip             a program with a skip connection
planning         layouts and memory; training, faulty_run: what trains

No answer is stored. What one reaches is measured on a cluster or computed by the planner; the best
possible is found by trying everything.
"""
