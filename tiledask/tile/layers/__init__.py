"""The layers of one device, forward and backward: the oracles of layers that are split.

by_name.py          the table of kernels, as programs call them, and how a layer is made of two
saving.py           the layers as a person calls them
self_attention.py   projections, heads, rotary positions; and back
  attention.py        any query head at any kv head; softmax
  rotary.py           pairs of columns turned by their position
mlp.py              up, activation, down: plain and SwiGLU
  activations.py      relu, gelu, silu, the gate
  linear.py           x w + b; the linear layers inside of a layer, by name
norms.py            LayerNorm, RMSNorm
embedding.py        rows of a table, or of a part of it
cross_entropy.py    the loss, in pieces that devices with some of the classes add up
convolution/        convolution in two dimensions, pooling, and the windows of both
parameters.py       numbers by name and place, the same whatever the split
rng.py              random numbers without a state
operands.py         what all of them ask of their operands; halves

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

from tiledask.tile.layers.activations import ACTIVATIONS, find_activation
from tiledask.tile.layers.attention import shared_heads
from tiledask.tile.layers.convolution.conv import conv2d_parameters
from tiledask.tile.layers.convolution.im2col import windows
from tiledask.tile.layers.cross_entropy import (
    LossRule,
    count_targets,
    cross_entropy,
    cross_entropy_grad,
)
from tiledask.tile.layers.linear import linear_grad_input, linear_grad_weight
from tiledask.tile.layers.mlp import (
    fuse_gate_up,
    mlp,
    mlp_grad,
    mlp_parameters,
    swiglu_mlp,
    swiglu_mlp_grad,
    swiglu_mlp_parameters,
)
from tiledask.tile.layers.parameters import Parameter, draw, initialise, matrix
from tiledask.tile.layers.rng import key, normals, positions, uniforms
from tiledask.tile.layers.rotary import Angles, rotary_angles
from tiledask.tile.layers.saving import (
    attention,
    attention_grad,
    avg_pool2d,
    avg_pool2d_grad,
    conv2d,
    conv2d_grad,
    conv2d_grad_input,
    conv2d_grad_weight,
    embedding,
    embedding_grad,
    flatten,
    flatten_grad,
    gelu,
    gelu_grad,
    layer_norm,
    layer_norm_grad,
    linear,
    linear_grad,
    max_pool2d,
    max_pool2d_grad,
    relu,
    relu_grad,
    rms_norm,
    rms_norm_grad,
    rotate,
    rotate_grad,
    silu,
    silu_grad,
    softmax,
    softmax_grad,
    swiglu,
    swiglu_grad,
)
from tiledask.tile.layers.self_attention import (
    Heads,
    fuse_qkv,
    self_attention,
    self_attention_grad,
    self_attention_parameters,
)

__all__ = [
    "ACTIVATIONS",
    "Angles",
    "Heads",
    "LossRule",
    "Parameter",
    "attention",
    "attention_grad",
    "avg_pool2d",
    "avg_pool2d_grad",
    "conv2d",
    "conv2d_grad",
    "conv2d_grad_input",
    "conv2d_grad_weight",
    "conv2d_parameters",
    "count_targets",
    "cross_entropy",
    "cross_entropy_grad",
    "draw",
    "embedding",
    "embedding_grad",
    "find_activation",
    "flatten",
    "flatten_grad",
    "fuse_gate_up",
    "fuse_qkv",
    "gelu",
    "gelu_grad",
    "initialise",
    "key",
    "layer_norm",
    "layer_norm_grad",
    "linear",
    "linear_grad",
    "linear_grad_input",
    "linear_grad_weight",
    "matrix",
    "max_pool2d",
    "max_pool2d_grad",
    "mlp",
    "mlp_grad",
    "mlp_parameters",
    "normals",
    "positions",
    "relu",
    "relu_grad",
    "rms_norm",
    "rms_norm_grad",
    "rotary_angles",
    "rotate",
    "rotate_grad",
    "self_attention",
    "self_attention_grad",
    "self_attention_parameters",
    "shared_heads",
    "silu",
    "silu_grad",
    "softmax",
    "softmax_grad",
    "swiglu",
    "swiglu_grad",
    "swiglu_mlp",
    "swiglu_mlp_grad",
    "swiglu_mlp_parameters",
    "uniforms",
    "windows",
]
