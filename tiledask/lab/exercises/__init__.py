"""The walkthroughs' exercises: judges that run an answer, or work out what it is worth.

exercise    a judge becomes an exercise, with its form and hints
products    by which algorithm blocks are multiplied; tiles: in which tiles of one device
layers      layers split over ranks; programs: of rows, a hybrid, a skip connection
planning    layouts and memory; training: a loss scale, a faulty run

No answer is stored. What one reaches is measured on a cluster or computed by the planner; the best
possible is found by trying everything.
"""
