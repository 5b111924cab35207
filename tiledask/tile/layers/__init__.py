"""The layers of one device, forward and backward: the oracles of layers that are split.

by_name.py        the table of kernels, as programs call them, and the layers made of them
composites.py     layers of several weights: self-attention, the feed-forward layers
  attention.py      any query head at any kv head; softmax
  rotary.py         pairs of columns turned by their position
  elementwise.py    relu, gelu, silu, the gate of SwiGLU
  linear.py         x w + b; the linear layers inside of a layer, by name
norms.py          LayerNorm, RMSNorm
embedding.py      rows of a table, or of a part of it
cross_entropy.py  the loss, in pieces that devices with some of the classes add up
conv.py           convolution in two dimensions, pooling
  windows.py        windows of images, and the sum of them back
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

from tiledask.tile.layers.attention import attention as attention
from tiledask.tile.layers.attention import attention_grad as attention_grad
from tiledask.tile.layers.attention import shared_heads as shared_heads
from tiledask.tile.layers.attention import softmax as softmax
from tiledask.tile.layers.attention import softmax_grad as softmax_grad
from tiledask.tile.layers.composites import Heads as Heads
from tiledask.tile.layers.composites import fuse_gate_up as fuse_gate_up
from tiledask.tile.layers.composites import fuse_qkv as fuse_qkv
from tiledask.tile.layers.composites import mlp as mlp
from tiledask.tile.layers.composites import mlp_grad as mlp_grad
from tiledask.tile.layers.composites import mlp_parameters as mlp_parameters
from tiledask.tile.layers.composites import self_attention as self_attention
from tiledask.tile.layers.composites import self_attention_grad as self_attention_grad
from tiledask.tile.layers.composites import self_attention_parameters as self_attention_parameters
from tiledask.tile.layers.composites import swiglu_mlp as swiglu_mlp
from tiledask.tile.layers.composites import swiglu_mlp_grad as swiglu_mlp_grad
from tiledask.tile.layers.composites import swiglu_mlp_parameters as swiglu_mlp_parameters
from tiledask.tile.layers.conv import avg_pool2d as avg_pool2d
from tiledask.tile.layers.conv import avg_pool2d_grad as avg_pool2d_grad
from tiledask.tile.layers.conv import conv2d as conv2d
from tiledask.tile.layers.conv import conv2d_grad as conv2d_grad
from tiledask.tile.layers.conv import conv2d_grad_input as conv2d_grad_input
from tiledask.tile.layers.conv import conv2d_grad_weight as conv2d_grad_weight
from tiledask.tile.layers.conv import conv2d_parameters as conv2d_parameters
from tiledask.tile.layers.conv import flatten as flatten
from tiledask.tile.layers.conv import flatten_grad as flatten_grad
from tiledask.tile.layers.conv import max_pool2d as max_pool2d
from tiledask.tile.layers.conv import max_pool2d_grad as max_pool2d_grad
from tiledask.tile.layers.cross_entropy import count_targets as count_targets
from tiledask.tile.layers.cross_entropy import cross_entropy as cross_entropy
from tiledask.tile.layers.cross_entropy import cross_entropy_grad as cross_entropy_grad
from tiledask.tile.layers.elementwise import ACTIVATIONS as ACTIVATIONS
from tiledask.tile.layers.elementwise import find_activation as find_activation
from tiledask.tile.layers.elementwise import gelu as gelu
from tiledask.tile.layers.elementwise import gelu_grad as gelu_grad
from tiledask.tile.layers.elementwise import relu as relu
from tiledask.tile.layers.elementwise import relu_grad as relu_grad
from tiledask.tile.layers.elementwise import silu as silu
from tiledask.tile.layers.elementwise import silu_grad as silu_grad
from tiledask.tile.layers.elementwise import swiglu as swiglu
from tiledask.tile.layers.elementwise import swiglu_grad as swiglu_grad
from tiledask.tile.layers.embedding import embedding as embedding
from tiledask.tile.layers.embedding import embedding_grad as embedding_grad
from tiledask.tile.layers.linear import linear as linear
from tiledask.tile.layers.linear import linear_grad as linear_grad
from tiledask.tile.layers.linear import linear_grad_input as linear_grad_input
from tiledask.tile.layers.linear import linear_grad_weight as linear_grad_weight
from tiledask.tile.layers.norms import layer_norm as layer_norm
from tiledask.tile.layers.norms import layer_norm_grad as layer_norm_grad
from tiledask.tile.layers.norms import rms_norm as rms_norm
from tiledask.tile.layers.norms import rms_norm_grad as rms_norm_grad
from tiledask.tile.layers.random import Parameter as Parameter
from tiledask.tile.layers.random import draw as draw
from tiledask.tile.layers.random import initialise as initialise
from tiledask.tile.layers.random import key as key
from tiledask.tile.layers.random import matrix as matrix
from tiledask.tile.layers.random import normals as normals
from tiledask.tile.layers.random import positions as positions
from tiledask.tile.layers.random import uniforms as uniforms
from tiledask.tile.layers.rotary import Angles as Angles
from tiledask.tile.layers.rotary import rotary_angles as rotary_angles
from tiledask.tile.layers.rotary import rotate as rotate
from tiledask.tile.layers.rotary import rotate_grad as rotate_grad
from tiledask.tile.layers.windows import windows as windows
