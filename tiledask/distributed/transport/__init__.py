"""Arrays from worker to worker: read from their owner's memory, or sent as messages.

blocks.py          blocks are lent, and how others may read them; tickets.py: where they lie
reader.py          parts of lent blocks, read for a task
process_memory.py  read from another process's memory
mailbox.py         what was sent to a rank and not taken yet
endpoint.py        where the ranks of a run receive, and send to each other by Dask
transport.py       messages between ranks, and what is said when they do not come
messages.py        the same between workers: datagrams on one host, else by Dask
"""
