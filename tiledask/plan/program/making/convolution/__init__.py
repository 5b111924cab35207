"""Programs of convolutions over ranks, and of d2l's LeNet.

convolutions.py  convolutions and pooling over ranks, by channels and by rows of the image
of_lenet.py      the program of a step of LeNet, on the ranks of any split, and what it needs
"""
