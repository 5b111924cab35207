"""Convolutions split over the ranks of a program, each with its gradients.

layers.py      by output channels; by rows of the image, with halos
lenet.py       train_lenet: d2l's LeNet on the ranks of any split, step after step

Each is a program: plan/program/making/convolutions.py has the layers, and lenet.py LeNet's step
and what it needs. What a layer calls is counted from its program.
"""

from tiledask.distributed.convolution import layers
from tiledask.distributed.convolution.layers import *  # noqa: F403
from tiledask.plan.program.making.lenet import need, rows_of

__all__ = ["need", "rows_of"]
__all__ += layers.__all__
