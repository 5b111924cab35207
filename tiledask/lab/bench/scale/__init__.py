"""`make bench-scale`: what products and trainings cost client and scheduler, by workers.

bench.py    the whole run: start, measure, fit, carry on, goals, a record with its page and picture
counted.py  what the scheduler counts of itself
shown.py    the table, the page, the figure
"""
