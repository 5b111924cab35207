"""Layers of images: convolution, pooling, and the windows of both.

conv.py       convolution in two dimensions
pooling.py    the largest, the mean; flatten
im2col.py     the windows of an image, and their sum back
"""
