"""The makers of schedules, one function each: from counts to the order of actions per device.

rounds.py    warm up, then a forward and a backward in turns: layer-wise to ZB-H2
v_shape.py   stages down the devices and up again: ZB-V, V-Half, V-Min
two_way.py   two streams of micro-batches that meet: Chimera, DualPipe, DualPipeV
zb_auto.py   the best of several orders for given times and memory
lanes.py     a device's order from words for its steps
"""
