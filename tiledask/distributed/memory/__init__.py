"""What a memory plan claims, run: workers hold the states, do a step, are refused too much.

claims.py      run_claim, and what came of it
case.py        what is claimed, and the programs of that
device_run.py  one device's step, in a pool that counts
"""
