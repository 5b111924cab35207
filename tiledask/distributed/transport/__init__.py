"""Arrays from worker to worker: read from their owner, posted, by sockets or by Dask's messages.

remote_read.py     blocks are lent, and how others may read them
reader.py          parts of lent blocks, read for a task
loans.py           what is lent and was read; tickets.py: where it lies
process_memory.py  read from another process's memory
mailbox.py         what was sent to a device and not taken yet
meeting.py         the devices of a run meet; blocks are posted to each other
transport.py       messages between ranks, and what is said when they do not come
dask_transport.py  the same by Dask's connections
sockets.py         the same by sockets, on one host
"""
