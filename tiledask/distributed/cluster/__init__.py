"""Workers: started here or joined, given work by slot, watched, and what each of them may hold.

start.py          start_cluster: GPU workers, or CPU workers
slots.py          two plugins of Dask's: which worker is in which slot, and what it has there
cluster.py        Cluster: slots, tasks that are pinned to them, deadlines; what a notebook shows
tasks.py          how tasks begin, are waited for and fail; questions that end in time
spool.py          the folder of the arrays that were distributed; which host this is
room.py           how much more a worker may hold, and by which rule
host_memory.py    memory of a worker's process: held, capped, kept for the next block
gpus.py           GPU workers: whose each GPU is, and what they start with
device_memory.py  memory of a worker's GPU: one pool for everything
device_arrays.py  how a GPU's arrays are serialized
counters.py       bytes received and memory grown, while a block runs
clocks.py         every worker's offset from the scheduler's clock
progress.py       how far workers are, by their events
"""
