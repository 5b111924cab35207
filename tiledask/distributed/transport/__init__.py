"""Arrays from worker to worker: read from their owner's memory, or sent as messages.

blocks.py     blocks are lent; a task reads parts of them, and they are counted
tickets.py    where they lie; parts of them read from another process's memory
transport.py  messages between ranks, and what is said when they do not come
messages.py   the same between workers, and where they receive: datagrams on one host, else by Dask
"""
