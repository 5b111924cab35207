"""Workers: started here or joined, given work by slot, watched, and what each of them may hold.

start.py          start_cluster: GPU workers, or CPU workers
forkserver.py     CPU workers that start fast
worker.py         what a worker process loads before its first task
cluster.py        Cluster: slots, tasks that are pinned to them, deadlines
spool.py          the folder of the arrays that were distributed
room.py           how much more a worker may hold, and by which rule
host_memory.py    memory of a worker's process: held, capped, kept for the next block
device_memory.py  memory of its GPU: one pool for everything
device_arrays.py  how a GPU's arrays are serialized
counters.py       bytes received and memory grown, while a block runs
load.py           what other processes took of the cores meanwhile
clocks.py         every worker's offset from the scheduler's clock
web.py            the dashboard: its port, whose pages may show it, JupyterLab's panels
progress.py       how far workers are, by their events
"""
