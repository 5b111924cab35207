"""Y = X A on GPUs of which none holds A: only what cuts A helps.

Holds `tiledask.lab.questions.products.split_linear`.
"""

import numpy as np
import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.questions.products.split_linear import METHODS, grid_of, whole_of


def test_a_half_by_columns_rows_and_blocks_and_all_of_it_otherwise():
    answer = td.ask(4, run=False)
    held = answer.values["bytes of A"]
    assert [held[name] / (512 * 384 * 4) for name in METHODS] == [1 / 2, 1 / 2, 1, 1, 1 / 2]
    assert answer.values["fit"] == ["columns of A", "rows of A", "blocks of A"]
    assert [sent > 0 for sent in answer.values["sent"]["columns of A"]] == [False, True]
    assert [sent > 0 for sent in answer.values["sent"]["rows of A"]] == [True, False]
    with pytest.raises(ConfigError, match="the smallest is 3"):
        td.ask(4, columns=3, gpus=4, run=False)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_each_method_is_compared_with_one_device(name, ranks):
    """Of uneven sizes; and a wrong dA is seen by whoever holds a part of it."""
    whole = whole_of(5, 7, 4)
    done = td.run_threads(METHODS[name].program, grid_of(ranks), whole).results
    assert all(same for _, same in done)
    fullest = METHODS[name].cut(7, 4, ranks)
    assert max(nbytes for nbytes, _ in done) == 4 * np.prod(fullest)
    wrong = whole._replace(da=whole.da + 1)
    told = td.run_threads(METHODS[name].program, grid_of(ranks), wrong).results
    assert not all(same for _, same in told)
