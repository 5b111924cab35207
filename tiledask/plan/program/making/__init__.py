"""Programs are made from shapes alone: of schedules, of trainings, of the layouts of a search.

writer.py        instructions under way; the tape from which a backward is written
layers.py        layers over tensor-parallel ranks, forward only
unit_states.py   weights, gradients and the optimizer's states by ZeRO, and the update
decoder.py       the shapes of a decoder's units
of_layer.py      the program of one layer
of_training.py   the program of a training's step
of_end.py        that of its end: a checkpoint is written, weights are brought
of_states.py     that of a step of which the parameters are counted, and nothing else is known
of_layout.py     that of a planner's layout, and its seconds
of_schedule.py   the program of a pipeline schedule
convolution/     convolutions over ranks, and the program of LeNet's step
"""
