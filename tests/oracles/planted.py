"""Faults that are planted in the text of a kernel, as lines ``fault: before => after``."""

import re

__all__ = ["faults"]


def faults(text):
    r"""{fault: (before, after)}. ``\n`` is the end of a line, and what is indented goes on."""
    found = {}
    for entry in re.split(r"\n(?=\S)", text.strip()):
        name, colon, fault = entry.partition(":")
        before, arrow, after = fault.partition("=>")
        assert colon == ":", entry
        assert arrow == "=>", entry
        assert name not in found, name
        found[name] = tuple(x.strip().replace(r"\n", "\n") for x in (before, after))
    return found
