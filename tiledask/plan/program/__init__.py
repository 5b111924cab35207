"""Programs: instructions per rank, made from shapes alone, and what reads them.

instructions.py  the nouns: instructions, parts, lines
program.py       a program: these and its readers
making/          programs of schedules, trainings, layouts, layers, LeNet
lenet.py         d2l's LeNet by its shapes, and how it is split
text.py          as text that people read, and back
check.py         what is wrong with one, before anything runs
  graph.py       what waits for what
count.py         bytes and messages between ranks
  calls.py       what each rank calls, in order; layer_calls.py: one layer
clock.py         when every instruction runs
held.py          what every rank holds
"""
