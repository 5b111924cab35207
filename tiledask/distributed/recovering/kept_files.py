"""One rank's state in one folder: the last two files, and a log of what only grows.

    0-40-0      rank 0 after 40 steps, of attempt 0: what else a step leaves to the next, arrays
    0-0.log     losses, records: all of them that attempt 0 knew of

A file is written beside and renamed: one that was interrupted does not exist. The older of two is
written over, its pages are there already.
"""

import os
import pickle
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from typing import Any, NamedTuple

from tiledask.errors import CheckpointError

__all__ = ["COPIES", "KeptFile", "KeptFiles", "sealed", "unsealed"]

COPIES = "copies"
"""The folder, in one for what ranks of a host keep, of what they keep for others."""
_SEAL = 16
_SIZE = 8


class KeptFile(NamedTuple):
    """What its name says of a file."""

    rank: int
    step: int
    """How many steps were done."""
    attempt: int

    @classmethod
    def named(cls, name: str) -> "KeptFile | None":
        """None for the name of something else."""
        parts = name.split("-")
        if len(parts) != 3 or not all(part.isdigit() for part in parts):
            return None
        return cls(*map(int, parts))

    @property
    def name(self) -> str:
        return "-".join(map(str, self))

    @property
    def log(self) -> str:
        """The name of the log that belongs to it."""
        return f"{self.rank}-{self.attempt}.log"


class KeptFiles:
    """The files of ``rank`` in ``folder``: but for ``found``, they are gone now.

    ``folder`` is None where there is none, and once it had no room.
    """

    def __init__(self, folder: Path | None, rank: int, found: KeptFile | None = None) -> None:
        self.folder, self._rank = folder, rank
        self._files = [found] if folder and found and (folder / found.name).exists() else []
        self._clear()

    def _clear(self) -> None:
        needed = {name for each in self._files for name in (each.name, each.log)}
        with suppress(OSError):
            for path in self.folder.glob(f"{self._rank}-*") if self.folder else ():
                if path.name not in needed:
                    path.unlink(missing_ok=True)

    def write(self, made: KeptFile, parts: Iterator[Any]) -> None:
        """None; the first of ``parts`` is added to the log, all others are the file. They are taken
        one by one, unless there is no room: then nothing of this rank stays here, for what it
        computes is worth more than what is kept of it."""
        if self.folder is None:
            return
        try:
            self._write(self.folder, made, parts)
        except OSError:
            self._files = []
            self._clear()
            self.folder = None

    def _write(self, folder: Path, made: KeptFile, parts: Iterator[Any]) -> None:
        with open(folder / made.log, "ab") as log:
            log.write(next(parts))
        new = folder / f"{made.rank}-{made.attempt}.new"
        if len(self._files) == 2:
            os.rename(folder / self._files.pop(0).name, new)
        with open(os.open(new, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            for part in parts:
                file.write(part)
            file.truncate()
        os.rename(new, folder / made.name)
        self._files.append(made)


def sealed(key: bytes, what: Any) -> bytes:
    """``what`` as bytes, which `unsealed` takes with the same key alone.

    >>> import io
    >>> unsealed(b"key", io.BytesIO(sealed(b"key", [1, 2])), "a file")
    [1, 2]
    """
    body = pickle.dumps(what)
    seal = blake2b(body, key=key, digest_size=_SEAL).digest()
    return seal + len(body).to_bytes(_SIZE, "little") + body


def unsealed(key: bytes, file: Any, name: str) -> Any:
    """What comes next in ``file``. Raises CheckpointError, which says its ``name``, if that is not
    what was sealed with ``key``."""
    seal, size = file.read(_SEAL), int.from_bytes(file.read(_SIZE), "little")
    at, end = file.tell(), file.seek(0, os.SEEK_END)
    file.seek(at)
    body = file.read(min(size, end - at))
    if not compare_digest(seal, blake2b(body, key=key, digest_size=_SEAL).digest()):
        raise CheckpointError(
            f"{name} is not what a rank of this training kept: it was damaged; start the training "
            f"again"
        )
    return pickle.loads(body)
