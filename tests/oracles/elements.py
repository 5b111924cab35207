"""The elements of a matrix in a file, as it reads them itself."""

import numpy as np


def elements(array, region=None):
    """Those of ``region``, or all."""
    region = region or tuple((0, n) for n in array.shape)
    out = np.empty([stop - start for start, stop in region], array.dtype)
    array.read(region, out)
    return out
