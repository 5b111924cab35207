"""Damaged inputs of every reader and command: an answer, or an error that tiledask declares.

Each mutant is answered within 20 s of a core and a gigabyte, in 600 printable characters at most.
"""

import re

import pytest
from distributed.core import clean_exception, error_message
from twins.mutants import survey
from twins.readers import READERS

from tiledask import errors
from tiledask.tile.memory import Refused

ERRORS = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]

FEW = 80 // len(READERS) + 1
SLOWLY = pytest.param(range(FEW, 20_000 // len(READERS)), marks=pytest.mark.slow)


@pytest.mark.parametrize("numbers", [range(FEW), SLOWLY])
@pytest.mark.parametrize("reader", READERS)
def test_mutants(reader, numbers):
    assert survey(reader, numbers) == {}


@pytest.mark.parametrize("kind", [*ERRORS, Refused])
def test_errors_come_from_workers_as_what_they_are(kind):
    try:
        raise kind("24 GB are needed, 16 are there")
    except kind as error:
        said = error_message(error)
    _, came, _ = clean_exception(said["exception"].data)
    assert type(came) is kind
    assert str(came) == "24 GB are needed, 16 are there"


@pytest.mark.parametrize("kind", ERRORS)
def test_messages_are_short_and_printable(kind):
    error = kind("first " + "x" * 10_000 + " last\x1b[2J\u202e")
    assert re.fullmatch(r"first x.{,590}last\\x1b\[2J\\u202e", str(error))
    assert len(error.args[0]) > 10_000
