"""cupy.random's generators; the numbers are NumPy's."""

import numpy as np

from cupy._array import unwrapped, wrapped

_NAMES = frozenset(
    """
    beta binomial chisquare dirichlet exponential f gamma geometric hypergeometric integers
    logseries multivariate_normal normal permutation poisson power random
    standard_exponential standard_gamma standard_normal uniform vonmises wald zipf
    """.split()  # noqa: SIM905
)


class Generator:
    def __init__(self, bits):
        self._own = np.random.Generator(bits)

    def __getattr__(self, name):
        if name not in _NAMES:
            raise AttributeError(f"CuPy's Generator has no {name}")

        def draw(*args, **options):
            out = options.pop("out", None)
            given = {key: unwrapped(value, []) for key, value in options.items()}
            found = getattr(self._own, name)(*(unwrapped(x, []) for x in args), **given)
            if out is not None:
                out[...] = wrapped(np.asarray(found))
                return out
            return wrapped(np.asarray(found))

        return draw


def XORWOW(seed=None):
    return np.random.PCG64(seed)


MRG32k3a = Philox4x3210 = XORWOW


def default_rng(seed=None):
    return seed if isinstance(seed, Generator) else Generator(XORWOW(seed))


_global = [default_rng(0)]


def seed(seed=None):
    _global[0] = default_rng(seed)


def random(size=None):
    return _global[0].random(size)


def rand(*size):
    return _global[0].random(size)


def randn(*size, dtype=float):
    return _global[0].standard_normal(size).astype(dtype)


def standard_normal(size=None, dtype=float):
    return _global[0].standard_normal(size).astype(dtype)


def randint(low, high=None, size=None, dtype=int):
    return _global[0].integers(low, high, size=size).astype(dtype)


def uniform(low=0.0, high=1.0, size=None, dtype=float):
    return _global[0].uniform(low, high, size=size).astype(dtype)
