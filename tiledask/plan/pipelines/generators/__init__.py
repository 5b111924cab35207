"""The makers of schedules, one function each: from counts to the order of actions per device.

classic.py      backward in one action: layer by layer, GPipe, 1F1B, interleaved, looped BFS
zero_bubble.py  backward in two, input and weights: ZB-H1, ZB-H2, automatic, interleaved
zb_v.py         stages down the devices and up again: ZB-V, V-Half, V-Min
given.py        what they share: times, memory, what is best of several
chimera.py      two replicas in opposite directions
dualpipe.py     two streams of micro-batches, a forward and a backward at once
lanes.py        a device's order from words for its steps, as zb_v and dualpipe write them
"""
