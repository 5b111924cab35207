"""What was measured, as it comes: a line that is whole and checked, or is not there.

    {"by": "9f3c...", "cell": {"n": 64}, "value": 0.25} 5b1de0c4a1f09e77     JSON, and its digest

append, Lines   such a file: a line goes out at once, and is read as it comes
Store           the cells of a sweep in one: what is there is not measured again
"""

import hashlib
import json
import os
import platform
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import tiledask
from tiledask.errors import ConfigError, short
from tiledask.lab.report import library_versions, write_whole

__all__ = ["Lines", "Store", "alone", "append", "code", "made_by"]

T = TypeVar("T")


def append(path: Path, facts: Mapping[str, Any], sync: bool = True) -> None:
    """None, once ``facts`` are a line of ``path``, and with ``sync`` on the disk itself.

    ConfigError where they are not JSON, or there is no room: the file is then as it was.
    """
    line, made = _line(facts), not path.exists()
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    except OSError as error:
        raise _unwritten(path, error) from None
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":  # half a line, whose writer is gone
            line = b"\n" + line
        try:
            if (wrote := os.write(fd, line)) < len(line):
                raise OSError(f"{wrote} bytes were taken")
            if sync:
                os.fsync(fd)
        except OSError as error:
            os.ftruncate(fd, size)
            raise ConfigError(
                f"{path}: no room for a line of {len(line):,} bytes after {size:,} "
                f"({error.strerror or error}); the lines before it are kept: make room and run "
                f"again, what is there is not measured twice"
            ) from None
    finally:
        os.close(fd)
    if made and sync:
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def _unwritten(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path} cannot be written: {error.strerror or error}; make room there, or name a file in "
        f"a folder that is yours"
    )


def _line(facts: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(facts, default=_plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"what is kept is what JSON can say, numbers, words, lists and dicts, got "
            f"{short(facts)}: {error}"
        ) from None
    return b"%s %s\n" % (text, _digest(text))


def _plain(value: Any) -> Any:
    """NumPy's and CuPy's numbers and arrays as Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is none of these")


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=8).hexdigest().encode()


def _checked(line: bytes) -> dict[str, Any] | None:
    text, _, digest = line.rpartition(b" ")
    if digest != _digest(text):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # by somebody who knows the digest
        return None
    return found if isinstance(found, dict) else None


class Lines:
    """The lines of a file, as they come; half a line waits for its other half."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0
        self.damaged: list[bytes] = []
        """Lines that are not what was written."""

    def read(self) -> list[dict[str, Any]]:
        """What has come since it was last read."""
        come = self._behind()
        whole = come[: come.rfind(b"\n") + 1]
        self.at += len(whole)
        lines = [line for line in whole.split(b"\n") if line]
        found = [_checked(line) for line in lines]
        self.damaged += [line for line, f in zip(lines, found, strict=True) if f is None]
        return [each for each in found if each is not None]

    def half(self) -> bytes:
        """Half a line that is there and has no writer any more: it is passed over."""
        left = self._behind()
        self.at += len(left)
        return left

    def _behind(self) -> bytes:
        with suppress(FileNotFoundError), open(self.path, "rb") as file:
            file.seek(self.at)
            return file.read()
        return b""


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Nobody else has ``path`` meanwhile; ConfigError names the process that has it.

    The lock is the kernel's: it ends with the process, whatever ends that.
    """
    import fcntl  # not on Windows, where files are read all the same

    lock = path.with_name(f"{path.name}.lock")
    while True:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(lock)):
                    break  # and not one that its owner has just removed
        except BlockingIOError:
            pid = os.pread(fd, 20, 0).decode("ascii", "replace") or "?"
            os.close(fd)
            raise ConfigError(
                f"{path} has one writer at a time, and process {pid} is writing it, this is "
                f"{os.getpid()}: wait for it or end it, or name another file"
            ) from None
        os.close(fd)
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(fd)


class Store:
    """The cells of a sweep in ``path``, by their parameters and by what made them; one writer.

    A cell that is there is not measured again, unless the package's code, a library's version, the
    machine or ``made``, anything else that decides, is another. Damaged lines are set aside in
    ``path``.damaged with a warning, and their cells are measured again.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "squares.jsonl"
    >>> for again in range(2):
    ...     with Store(path) as store:
    ...         print(len(store.cells()), [store.once(lambda n=n: n * n, n=n) for n in (2, 3)])
    0 [4, 9]
    2 [4, 9]
    """

    def __init__(self, path: str | os.PathLike, made: Mapping[str, Any] | None = None) -> None:
        self.path = Path(path)
        made = {**made_by(), **(made or {})}
        self.by = _digest(_line(made)).decode()
        """Digest of what makes the cells."""
        try:
            with ExitStack() as stack:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(alone(self.path))
                rows = self._read()
                if not any(row.get("by") == self.by and "made" in row for row in rows):
                    append(self.path, {"by": self.by, "made": made})
                self._open = stack.pop_all()
        except OSError as error:
            raise _unwritten(self.path, error) from None
        self._values = {
            _key(row["cell"]): (row["cell"], row["value"])
            for row in rows
            if row.get("by") == self.by and "cell" in row
        }

    def _read(self) -> list[dict[str, Any]]:
        """Its lines, once what is damaged is set aside."""
        lines = Lines(self.path)
        rows, whole = lines.read(), lines.at
        if lines.half():  # of a writer that was killed: it was never kept
            os.truncate(self.path, whole)
        if lines.damaged:
            aside = self.path.with_name(f"{self.path.name}.damaged")
            with open(aside, "ab") as file:
                file.write(b"\n".join([*lines.damaged, b""]))
            write_whole(self.path, b"".join(map(_line, rows)))
            warnings.warn(
                f"{self.path}: {len(lines.damaged)} of {len(lines.damaged) + len(rows)} lines are "
                f"not what was written; they are in {aside} now, and their cells are measured "
                f"again",
                stacklevel=3,
            )
        return rows

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """None; another process may write it now."""
        self._open.close()

    def once(self, measure: Callable[[], T], /, **cell: Any) -> T:
        """What ``measure()`` comes to for this cell, as JSON has it; asked only if it is not kept.

        It is on the disk when this returns.
        """
        key = _key(cell)
        if key not in self._values:
            line = {"by": self.by, "cell": cell, "value": measure()}
            append(self.path, line)
            kept = json.loads(json.dumps(line, default=_plain))
            self._values[key] = kept["cell"], kept["value"]
        value: T = self._values[key][1]
        return value

    def cells(self) -> list[tuple[dict[str, Any], Any]]:
        """(parameters, value) of each cell that is kept."""
        return list(self._values.values())


def _key(cell: Mapping[str, Any]) -> str:
    return json.dumps(cell, sort_keys=True, default=_plain)


@cache
def made_by() -> dict[str, Any]:
    """What decides a measurement beside its parameters: sources, libraries, machine."""
    machine = [platform.node(), platform.machine(), os.cpu_count()]
    return {"code": code()["digest"], "versions": library_versions(), "machine": machine}


@cache
def code() -> dict[str, str]:
    """The digest of the package's sources, and the commit where this is a checkout of git."""
    package = Path(tiledask.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        if path.suffix in (".py", ".cu", ".cuh"):
            digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    commit = ""
    with suppress(OSError, subprocess.SubprocessError):
        commit = subprocess.run(
            ["git", "-C", str(package), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout.strip()
    return {"digest": digest.hexdigest()[:16], "commit": commit}
