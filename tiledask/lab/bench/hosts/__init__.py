"""`make bench-hosts`: two hosts on this machine beside one, connected workers beside our own.

bench.py      hosts and workers, started by hand; what was measured, as tables, goals, a record
by_hand.py    network namespaces joined by a cable, and Dask as people start it
client.py     runs on host A: products, dask.array, trainings, in rounds that take turns
link.py       the cable alone
rows.py       seconds of ways that took turns, as a row
"""
