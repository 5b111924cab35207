"""A stage of a decoder in training whose arrays are all counted.

stage_trainer.py    one pipeline stage of a training step on one device
decoder.py          a decoder's layer, and what it keeps of every tensor
flat_states.py      weights, gradients and optimizer states in flat arrays, sharded by ZeRO; a step
pool.py             a device's memory: counts arrays, refuses the next
"""
