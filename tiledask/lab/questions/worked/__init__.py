"""The questions, a function each: its inputs, what arithmetic and simulation say, and its run."""
