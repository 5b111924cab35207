"""Convolutions split over the ranks of a program, each with its gradients.

placed.py      arrays that say how they lie; the split follows, or it is refused
channels.py    by output channels, by input channels, one after the other, by groups
space.py       by rows of the image, with halos; pooling too
  local.py       a rank's part, which may be empty
lenet.py       d2l's LeNet, layer by layer
  lenet_runs.py  the same split three ways: each layer, consecutive layers, the batch
  lenet_plan.py  what each of the three needs, by arithmetic

What each of them calls is predicted in plan/collectives/convolution.py.
"""
