"""Exercises about layers split over ranks: attention, a gated layer, convolutions, LeNet.

attention_heads  assign heads to ranks so that the fullest has the least to do
f_and_g          put the two all-reduces of a feed-forward layer into its code
partial_sums     place the sums of a gated layer
convolutions     borrow rows, split each layer of LeNet its own way; its steps in lenet_splits
lenet_splits     LeNet with a split of its own for every layer, predicted and run
lenet_hybrids    ways of splitting that multiply, chosen by arithmetic and trained
"""
