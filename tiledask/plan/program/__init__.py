"""Programs: ops per rank, made from shapes alone, and what reads them.

ops.py       the nouns: ops, blocks, roles, orders
program.py   a program: these, what is wrong with it, and its readers
text.py      a program read back from its text
making/      programs of schedules, layers, trainings, LeNet
count.py     what each rank calls, in order
"""
