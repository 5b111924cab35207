"""The questions of the course, by number or in words: each worked out, and run on workers.

ask.py        td.ask(34, layers=24): an answer
  by_words.py   "24 layers on 4 devices": which question that is, and its inputs
  answer.py     as people read it, and as JSON
  table.py      all questions by number, out of the rooms below
  question.py   what a question is: words, inputs, working, run
  inputs.py     numbers as people type them: 3B, 40GB, 25GB/s
  readers.py    readers of inputs that several questions have
  index.py      which sections of the walkthroughs teach it; makes nbs/questions.md
  terminal.py   what `tiledask ask` prints

products   1 to 10    one large product: blocks over workers, tiles within, layers split
layers     13, 26-30  networks split within their layers, or layer by layer
pipelines  11, 12, 31-39  layers in a row on devices: where to cut, who waits how long
planning   14 to 25   what fits, which layout to choose, what went wrong
"""
