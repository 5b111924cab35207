"""The arithmetic of collectives: who sends what to whom, the bytes of it, and the seconds.

moves.py        every algorithm as rounds of moves of chunks
formulas.py     the bytes of each rank in closed form, from the literature
  cost.py       what the moves carry: bytes, messages and rounds of every rank
    seconds.py  how long they take where messages have a latency and links a bandwidth
halo.py         which rows neighbours need of each other
"""
