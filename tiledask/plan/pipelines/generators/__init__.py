"""The makers of schedules, one function each: from counts to the order of actions per device.

classic.py      backward in one action: layer by layer, GPipe, 1F1B, interleaved, looped BFS
zero_bubble.py  backward in two, input and weights: ZB-H1, ZB-H2, automatic, interleaved
zb_v.py         stages down the devices and up again: ZB-V, V-Half, V-Min, automatic, waves
given.py        what the automatic ones share: times, memory, what is best of several, a search
chimera.py      two replicas in opposite directions
dualpipe.py     two streams of micro-batches, a forward and a backward at once
lanes.py        a device's order from words for its steps, as zb_v and dualpipe write them
sharding.py     into any schedule: when weights are gathered and dropped, and gradients summed
messages.py     into its text: sends, receives and waits, as PyTorch's files have them
"""

from tiledask.submodules import submodules

__getattr__, __dir__ = submodules(__name__, __path__)
