"""Many devices: Dask workers as ranks, sharded arrays, products, layers and trainings over them.

cluster/        workers in numbered slots: started, given work, watched, measured
connecting/     the same on workers that somebody else started: td.connect
transport/      arrays from worker to worker: memory, CUDA's handles, sockets, Dask's messages
arrays/         arrays sharded over a mesh of workers, moved by named collectives
products/       C = A @ B of sharded arrays, and of dask.arrays: planned, chosen, run, counted
out_of_core/    C = A @ B of matrices in files
pipelines/      schedules run action by action
memory/         what a memory plan says, held by workers
programs/       programs run: a rank goes through its line of instructions
ranks/          one function on every rank: groups and their collectives
tensor/         layers split over the ranks of a group
convolution/    LeNet split by channels and by space
training/       a GPT trained under (dp, tp, pp)
checkpoints/    saved under one layout, read under another
deadlines.py    one end for all that a public call waits for
retry.py        a call made again when a worker was lost in it
"""
