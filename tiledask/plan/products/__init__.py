"""One matrix product over many ranks: placements, pieces that move, cost, bounded memory."""
