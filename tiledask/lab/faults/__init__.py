"""Every fault that is promised to be borne, injected into real clusters: a table, and a soak.

workloads   products, schedules, a training, a claim: bytes that are equal when nothing is wrong
trying      one try: the same bytes, an error that is declared, or what must not be
running     faults of processes: killed, frozen, without a nanny, retired, poison
apart       faults that take a cluster of their own: scheduler, host, interrupt, full disk
by_hand     hosts on one machine, and Dask as people start it
contents    faults of numbers: bad blocks, flipped bits, damaged files, too little memory
table       the faults, what is promised of each, and on what it is tried
command     `make faults`
soak        `make soak-faults`
"""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
