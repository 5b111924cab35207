"""An answer as it was typed: itself, or the file or the standard input that holds it."""

import sys
from functools import lru_cache
from pathlib import Path

__all__ = ["answer_of"]


@lru_cache(maxsize=64)
def answer_of(word: str) -> str:
    """The answer itself, from a file or standard input ("-") where the word names one."""
    if word == "-":
        return sys.stdin.read()
    try:
        is_file = Path(word).is_file()
    except OSError:  # too long for a name
        is_file = False
    return Path(word).read_text(encoding="utf-8") if is_file else word
