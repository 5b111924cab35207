"""The questions of the course, by number or in words: each worked out, and run on workers.

ask.py        td.ask(34, layers=24): an answer; what `tiledask ask` prints
by_words.py   "24 layers on 4 devices": which question that is, and its inputs
index.py      which sections of the notebooks teach it; makes nbs/questions.md
question.py   @question: its words, inputs and sums; all by number in table.py
words.py      how answers are filled with numbers
products.py   1, 4, 7, 10           tiles.py      6, 8, 9
layers.py     5, 26 to 33, 35, 38, 39
pipelines.py  11, 12, 17, 34, 36, 37
fitting.py    2, 3, 13 to 15, 18, 21, 24, 25      layouts.py  16, 19, 20, 22, 23
sizes.py      the decoder and the machine that planning questions start from
runs.py       what questions run on workers
"""
