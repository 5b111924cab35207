"""Exercises about planning: the fewest GPUs, whole layouts, a layer larger than a device."""
