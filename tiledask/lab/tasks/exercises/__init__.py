"""The walkthroughs' exercises: judges that run an answer, or work out what it is worth.

exercise    a judge becomes an exercise, with its form and hints
cannon      shifts of blocks; programs: a skip connection; training: a faulty run

No answer is stored; the best possible is found by trying everything.
"""
