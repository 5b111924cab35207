"""The planner against published numbers, and other tools against the same ones."""
