"""The walkthroughs' exercises: judges that run an answer, or work out what it is worth.

exercise    a judge becomes an exercise, with its form and hints
tiles       a tile loop to repair
layers      layers split over ranks; programs: of rows, a skip connection
planning    layouts and memory; training: a loss scale, a faulty run

No answer is stored. What one reaches is measured on a cluster or computed by the planner; the best
possible is found by trying everything.
"""
