"""A result as a pandas DataFrame, where pandas is."""

from typing import Any

from tiledask.extras import needed_for

__all__ = ["frame"]


def frame(rows: Any, columns: list[str] | None = None) -> Any:
    """A pandas DataFrame of ``rows``, or of columns by name; without pandas an error in words."""
    with needed_for("a frame"):
        import pandas as pd

    return pd.DataFrame(rows, columns=columns)
