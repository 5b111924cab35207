"""Programs are run: arrays on threads and on Dask workers, what plan writes and reads as a list.

runner.py     a rank goes through its line, instruction by instruction
"""
