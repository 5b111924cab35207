"""Exercises about one product: its placements, its tiles, its kernel, and cores that wait.

placements     place two matrices, or choose an algorithm, so that the fewest bytes move
tiles          choose tiles under a limit of shared memory, and beside a mesh of workers
kernel_repair  repair a tile kernel
shifts         write Cannon's algorithm with shifts
levels         name the level at which cores wait for data
"""
