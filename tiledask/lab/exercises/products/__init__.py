"""Exercises about one product: its placements, its tiles, its kernel, and cores that wait.

placements     place two matrices so that their product moves the fewest bytes
choreography   choose algorithm and options for the fewest bytes in little memory
tile_choice    choose a kernel's tile under a limit, or anew on another device
kernel_repair  repair a tile kernel
shifts         write Cannon's algorithm with shifts
levels         name the level at which cores wait for data
"""
