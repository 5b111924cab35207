"""Seconds of a training step: products, collectives, pipeline, update."""
