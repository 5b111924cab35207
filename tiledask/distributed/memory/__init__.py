"""What a memory plan claims, run: workers hold the states, do a step, are refused too much.

claims.py      run_claim, and what came of it
device_run.py  what is claimed; one device's step, in a pool that counts
"""
