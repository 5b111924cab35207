"""Programs: instructions per rank, made from shapes alone, and what reads them.

instructions.py  the nouns: instructions, parts, lines
program.py       a program: these and its readers
of_schedule.py   the program of a pipeline schedule
text.py          as text that people read, and back
check.py         what is wrong with one, before anything runs
count.py         bytes and messages between ranks
clock.py         when every instruction runs
held.py          what every rank holds
"""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
