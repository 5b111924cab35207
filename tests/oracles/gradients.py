"""What makes a gradient right: finite differences, the adjoint identity, and exact transposes.

Everything is float64. ``f`` takes all operands and returns y; dy has the shape of y.
"""

import numpy as np

from tiledask.tile import array_namespace, to_numpy

STEP = 1e-5
TOLERANCE = {"rtol": 1e-6, "atol": 2e-8}


def draw(*shapes, seed=0):
    """Standard normal numbers in these shapes, the same whichever tests ran before."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


def inner(x, y):
    return float((x * y).sum())


def along(f, operands, i, direction, dy):
    """<dy, f' direction> in operand i, by central differences."""
    ends = []
    for sign in (1, -1):
        moved = [*operands]
        moved[i] = operands[i] + sign * STEP * direction
        ends.append(f(*moved))
    return inner(dy, ends[0] - ends[1]) / (2 * STEP)


def numerical(f, operands, i, dy):
    """The gradient in operand i, one element after the other."""
    xp = array_namespace(operands[i])
    found = np.empty(operands[i].shape)
    for place in np.ndindex(found.shape):
        unit = xp.zeros(found.shape)
        unit[place] = 1
        found[place] = along(f, operands, i, unit, dy)
    return found


def assert_gradients(f, operands, dy, grads):
    """Each gradient is the transpose of f's derivative: element by element, and <dy, f' v> =
    <gradient, v> for directions v at random."""
    rng = np.random.default_rng(99)
    for i, (x, grad) in enumerate(zip(operands, grads, strict=True)):
        assert grad.shape == x.shape, f"operand {i}"
        expected = numerical(f, operands, i, dy)
        np.testing.assert_allclose(to_numpy(grad), expected, **TOLERANCE, err_msg=f"operand {i}")
        for _ in range(3):
            v = array_namespace(x).asarray(rng.standard_normal(x.shape))
            off = abs(inner(grad, v) - along(f, operands, i, v, dy))
            assert off <= 1e-7 * (float(abs(grad * v).sum()) + 1), f"operand {i}"


def assert_transpose(f, transpose, x, dy):
    """<dy, f(x)> = <transpose(dy), x> for a linear f, to the last digits: no differences."""
    y, dx = f(x), transpose(dy)
    assert y.shape == dy.shape
    assert dx.shape == x.shape
    scale = float(abs(dy * y).sum() + abs(dx * x).sum())
    assert abs(inner(dy, y) - inner(dx, x)) <= 1e-13 * (scale + 1)
