"""The recorded runs in traces.tar.xz, unpacked: folders and CSVs. traces.md says what they are."""

import atexit
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path


@cache
def recorded_traces():
    """Name -> where it lies while this process runs."""
    folder = Path(tempfile.mkdtemp(prefix="traces-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(Path(__file__).with_name("traces.tar.xz")) as packed:
        packed.extractall(folder, filter="data")
    return {path.name: path for path in sorted(folder.iterdir())}
