"""Data sets for small models: a text and pictures that came with the package.

text.py      load_text: characters as numbers, batches by seed and step
images.py    load_images: pictures and labels, batches by seed and step

Row i of a batch follows from the seed, the step and i alone: a rank draws its own rows of the
global batch without the others', and any number of ranks draws the same batch.
"""

from tiledask.tile.datasets.images import Images, load_images
from tiledask.tile.datasets.text import Text, load_text

__all__ = ["Images", "Text", "load_images", "load_text"]
