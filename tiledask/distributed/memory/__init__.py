"""What a memory plan claims, run: workers hold the states, do a step, are refused too much."""
