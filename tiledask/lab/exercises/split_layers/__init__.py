"""Exercises about layers split over ranks: attention, a gated layer, convolutions, LeNet.

layers           attention by heads, the two all-reduces of a feed-forward layer, a split loss
partial_sums     place the sums of a gated layer
convolutions     borrow rows; count the devices from which a split moves more
lenet_hybrids    ways of splitting that multiply, chosen by arithmetic and trained
"""
