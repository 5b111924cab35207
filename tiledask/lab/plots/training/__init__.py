"""Figures of training: losses, what moves for each layer, and where layers and rows are.

losses             losses over one another and how far apart
layers_traffic     barriers and bytes of a step by layer, counted beside predicted
rank_grid          what each rank has, and with whom it talks along each axis
layers_on_devices  the path of one input through the layers, from device to device
rows_on_ranks      rows of an image: whose they are, and which are borrowed
"""
