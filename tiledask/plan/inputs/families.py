"""Model families as data: what a Hugging Face model_type implies that its config does not say.

data/families.json has a row for each, or what it has that another, which it is "like", has not.
The weights are those of the class of that name in the transformers library; a key that can
change their number is either read, or refused unless it holds the value that changes nothing.
"""

from dataclasses import dataclass, field
from typing import Any

from tiledask.plan.data import shipped_json

__all__ = ["FAMILIES", "KEYS", "Family"]

KEYS: dict[str, Any] = shipped_json("families.json")
"""The file: "aliases" has the keys that name a field of a Model, the usual one first; "same" the
``model_type`` whose language model has the same weights; "neutral" keys that add or drop weights
unless they hold one of these values; "harmless" patterns of keys that no parameter count depends
on."""


@dataclass(frozen=True)
class Family:
    """What a ``model_type`` implies."""

    fixed: dict[str, Any]
    """Model fields that every member has."""
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    switches: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Boolean key -> its "default", and the Model fields that its value goes into, "sets", or
    what they are where it is "true" or "false"."""
    dropout: dict[str, float] = field(default_factory=dict)
    """Dropout key -> its default."""
    tied: bool = False
    """Default of tie_word_embeddings."""
    classes: tuple[str, ...] = ()
    """The ``architectures`` with exactly these weights."""
    readers: tuple[str, ...] = ()
    """What else is read, by functions of hf_config's table."""
    window: int | None = None
    """Which layers have the ``sliding_window``: 0: all; n: all but each n-th; None: none has. What
    ``layer_types`` says goes first."""
    router: str = "greedy"
    """Default of topk_method, for a "dense first" family."""
    neutral: dict[str, list[Any]] = field(default_factory=dict)
    """Keys that change weights of this family unless they hold one of these values."""


def _families() -> dict[str, Family]:
    """Those of the file: of one that is like another, tables are added to and the rest replaced."""
    rows: dict[str, dict[str, Any]] = {}
    for name, own in KEYS["families"].items():
        like = rows.get(own.pop("like", ""), {})
        rows[name] = like | {
            key: like.get(key, {}) | value if isinstance(value, dict) else value
            for key, value in own.items()
        }
    return {name: Family(**row) for name, row in rows.items()}


FAMILIES = _families()
"""``model_type`` -> its family."""
