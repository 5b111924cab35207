"""The layers of one device, forward and backward: the oracles of layers that are split.

by_name.py        the table of kernels, as programs call them, and the layers made of them
composites.py     layers of several weights: self-attention, the feed-forward layers
  attention.py      any query head at any kv head; softmax; pairs of columns turned by position
  positionwise.py   of each token by itself: x w + b, relu, gelu, SwiGLU; LayerNorm, RMSNorm
embedding.py      rows of a table, or of a part of it
cross_entropy.py  the loss, in pieces that devices with some of the classes add up
conv.py           convolution in two dimensions, mean pooling; windows, and the sum of them back
random.py         random numbers without a state; parameters, the same whatever the split
operands.py       what all of them ask of their operands; halves

One convention:

    y, saved       = f(x, weights..., options)        forward
    dx, dweights...= f_grad(dy, saved, weights...)    backward, the transpose of f's derivative

- ``saved`` holds what the backward needs of the activations, and the options; never weights. Those
  are passed again, as a device that gathers its weights only when they are used would pass them.
- There is a gradient for each operand, in their order; None for one that was None. Integers have
  none. Layers of many weights take them in a dict and return a dict of the same names.
- Nothing that is passed in is changed.
- Operands are of one type: float64, float32, float16 or bfloat16. Halves are summed, activated
  and normalised in float32, and rounded where a function returns; a loss of halves stays float32.
- NumPy and CuPy arrays alike; shapes that do not go together raise KernelError, a ValueError.
"""

from tiledask.tile.layers.attention import *  # noqa: F403
from tiledask.tile.layers.composites import *  # noqa: F403
from tiledask.tile.layers.conv import *  # noqa: F403
from tiledask.tile.layers.cross_entropy import *  # noqa: F403
from tiledask.tile.layers.embedding import *  # noqa: F403
from tiledask.tile.layers.positionwise import *  # noqa: F403
from tiledask.tile.layers.random import *  # noqa: F403
