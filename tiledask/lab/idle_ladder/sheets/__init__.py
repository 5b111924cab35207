"""Sheets to fill in: each reads an answer, and says which part of it is off, never what is right.

timetable     what each worker does in each slot
names         which worker, which kind of gap
numbers       seconds, shares and counts
one_number    micro-batches: the fewest, the best
"""
