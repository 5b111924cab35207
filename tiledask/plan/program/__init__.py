"""Programs: ops per rank, made from shapes alone, and what reads them.

ops.py       the nouns: ops, blocks, roles, orders
program.py   a program: these and its readers; as text that people read, and back
making/      programs of schedules, layers, trainings, LeNet
lenet.py     d2l's LeNet by its shapes, and how it is split
walk.py      in which order ops can run, and what is wrong
clock.py     when every op runs
count.py     bytes and messages between ranks; what each rank calls, in order, and what it holds
"""
