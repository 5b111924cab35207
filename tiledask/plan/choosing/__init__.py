"""Which layout: all of them searched, what binds, what is wrong with one.

search.py       every layout of a space: counted, timed, the fastest that fit first
sensitivity.py  which limit of the cluster binds: the best plan with one relaxed at a time
critique.py     what is wrong with one layout, and what would be faster
"""
