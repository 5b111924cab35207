"""Programs are made from shapes alone: of schedules, of layers, of trainings.

tape.py          ops under way, and the rules from which a backward is written
layers.py        layers over tensor-parallel ranks, forward only
convolutions.py  convolutions and pooling over ranks
zero.py          weights, gradients and the optimizer's states by ZeRO, and the update
decoder.py       the shapes of a decoder's units
pipeline.py      the program of a pipeline schedule
layer.py         that of one layer
training.py      those of a training's step and of its end
lenet.py         that of a step of LeNet on the ranks of any split, and what it needs
"""
