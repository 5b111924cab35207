"""Model families as data: what a Hugging Face model_type implies that its config does not say.

data/families.json has a row for each, or what it has that another, which it is "like", has not.
The weights are those of the class of that name in the transformers library; a key that can
change their number is either read, or refused unless it holds the value that changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiledask.plan.data import shipped_json

__all__ = ["ALIASES", "FAMILIES", "HARMLESS", "NEUTRAL", "SAME", "Family"]

KEYS = shipped_json("families.json")
ALIASES: dict[str, list[str]] = KEYS["aliases"]
"""Field of a Model -> the keys that name it, the usual one first."""
SAME: dict[str, str] = KEYS["same"]
"""``model_type`` -> another one whose language model has the same weights."""
NEUTRAL: dict[str, list[object]] = KEYS["neutral"]
"""Keys that add or drop weights unless they hold one of these values."""
HARMLESS = "|".join(KEYS["harmless"])
"""Keys of training, generation, precision or labels, as a pattern: no parameter count depends on
them."""


@dataclass(frozen=True)
class Family:
    """What a ``model_type`` implies."""

    fixed: Mapping[str, object]
    """Model fields that every member has."""
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    switches: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Boolean key -> its "default", and the Model fields that its value goes into, "sets", or
    what they are where it is "true" or "false"."""
    dropout: Mapping[str, float] = field(default_factory=dict)
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
    neutral: Mapping[str, list[object]] = field(default_factory=dict)
    """Keys that change weights of this family unless they hold one of these values."""


def _families() -> dict[str, Family]:
    """Those of the file: of one that is like another, tables are added to and the rest replaced."""
    rows: dict[str, dict[str, Any]] = {}
    for name, own in KEYS["families"].items():
        rows[name] = dict(rows.get(own.pop("like", ""), {}))
        for key, value in own.items():
            more = isinstance(value, dict) and key in rows[name]
            rows[name][key] = rows[name][key] | value if more else value
    base = ("hidden", "layers", "heads", "vocab")
    found = {}
    for name, row in rows.items():
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
        found[name] = Family(**values | {"required": (*base, *row.get("required", ()))})
    return found


FAMILIES = _families()
"""``model_type`` -> its family."""
