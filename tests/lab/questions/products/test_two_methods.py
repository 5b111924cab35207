"""Y = X A on GPUs of which none holds A: only what cuts A helps."""

import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.questions.products.one_layer import METHODS


def test_a_half_by_columns_rows_and_blocks_and_all_of_it_otherwise():
    answer = td.ask(4, run=False)
    held = answer.values["bytes of A"]
    assert [held[name] / (512 * 384 * 4) for name in METHODS] == [1 / 2, 1 / 2, 1, 1, 1 / 2]
    assert answer.values["fit"] == ["columns of A", "rows of A", "blocks of A"]
    assert [sent > 0 for sent in answer.values["sent"]["columns of A"]] == [False, True]
    assert [sent > 0 for sent in answer.values["sent"]["rows of A"]] == [True, False]
    with pytest.raises(ConfigError, match="the smallest is 3"):
        td.ask(4, columns=3, gpus=4, run=False)
