"""Programs: ops per rank, made from shapes alone, and what reads them.

ops.py       the nouns: ops, blocks, roles, orders
program.py   a program: these and its readers; as text that people read, and back
making/      programs of schedules, layers, trainings, LeNet
walk.py      what is wrong
count.py     what each rank calls, in order, and the bytes and messages of a collective
"""
