"""Convolutions split over the ranks of a program, each with its gradients.

placed.py      arrays that say how they are placed; the split follows, or it is refused
channels.py    by output channels, by input channels, one after the other, by groups
space.py       by rows of the image, with halos; pooling too
  local.py       a rank's part, which may be empty
lenet.py       d2l's LeNet, layer by layer
  lenet_split.py   over how many ranks, each way: images, layers, units, rows; and hybrids
  lenet_plan.py    what any of them needs, by arithmetic
  lenet_step.py    a training step on one rank
    lenet_runs.py    of weights and images that all have: one step of each, by name
    lenet_train.py   train_lenet: trained for real, step after step

What each of them calls is predicted in plan/collectives/convolution.py.
"""

from tiledask.distributed.convolution.channels import (
    by_groups,
    by_groups_grad,
    by_input,
    by_input_grad,
    by_output,
    by_output_grad,
    in_pairs,
    in_pairs_grad,
    part,
)
from tiledask.distributed.convolution.lenet import LENET, flops
from tiledask.distributed.convolution.lenet_plan import need
from tiledask.distributed.convolution.lenet_split import rows_of
from tiledask.distributed.convolution.space import (
    avg_pool2d_in_rows,
    avg_pool2d_in_rows_grad,
    conv2d_in_rows,
    conv2d_in_rows_grad,
    max_pool2d_in_rows,
    max_pool2d_in_rows_grad,
)

__all__ = [
    "LENET",
    "avg_pool2d_in_rows",
    "avg_pool2d_in_rows_grad",
    "by_groups",
    "by_groups_grad",
    "by_input",
    "by_input_grad",
    "by_output",
    "by_output_grad",
    "conv2d_in_rows",
    "conv2d_in_rows_grad",
    "flops",
    "in_pairs",
    "in_pairs_grad",
    "max_pool2d_in_rows",
    "max_pool2d_in_rows_grad",
    "need",
    "part",
    "rows_of",
]
