"""The questions of the course, by number or in words: each worked out, and run on workers.

ask.py        td.ask(34, layers=24): an answer
  by_words.py   "24 layers on 4 devices": which question that is, and its inputs
  answer.py     as people read it, and as JSON
  table.py      all questions by number
  question.py   @question: its words, its inputs (the defaults of a function), its working
  inputs.py     numbers as people type them: 3B, 40GB, 25GB/s
  shares.py     shares and counts in words
  index.py      which sections of the walkthroughs teach it; makes nbs/questions.md
  terminal.py   what `tiledask ask` prints
worked/       the questions themselves, their runs (runs.py) and sizes (sizes.py)
"""
