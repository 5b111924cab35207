"""A result as a pandas DataFrame, where pandas is."""

from typing import TYPE_CHECKING, Any

from tiledask.extras import needed_for

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["frame"]


def frame(rows: Any, columns: list[str] | None = None) -> "pd.DataFrame":
    """A pandas DataFrame of ``rows``, or of columns by name; without pandas an error in words."""
    with needed_for("a frame"):
        import pandas as pd

    return pd.DataFrame(rows, columns=columns)
