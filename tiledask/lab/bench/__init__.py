"""Comparisons with peers on this machine: the same work, the same run, interleaved, medians."""
