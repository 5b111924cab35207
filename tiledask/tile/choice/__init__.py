"""The choice of tile as arithmetic: what each level moves, what bounds it, what is the fastest.

config.py  Config: how a kernel tiles; the configurations by kernel; blocks of a multiprocessor
bound.py   predict: one formula at three levels, and the roofline over them
"""
