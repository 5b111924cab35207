"""What people look at: comparison tables, figures, puzzles and the report."""
