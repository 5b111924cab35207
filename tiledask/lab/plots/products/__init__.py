"""Figures of one product: blocks and their owners, bytes from rank to rank, tiles on a device.

owners          who owns which block of a matrix, and matrices alone, to scale
corner          a product with its operands at its edges; a block in the mesh, a tile in the block
rounds          a collective round by round
panels          who reads from whom, panel by panel
traffic_matrix  bytes from rank to rank, predicted beside measured
tile_levels     which tile shares what it loads, level by level
roofline        the roofline of every level, with the ladder of kernels that climbs it
"""
