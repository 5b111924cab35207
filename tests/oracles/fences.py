"""The fenced blocks of a page in Markdown."""

import re

FENCE = re.compile(
    r"^(?P<fence>```+|~~~+)[ \t]*(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=fence)", re.M | re.S
)
SHELL, PYTHON = ("sh", "bash", "shell", "console"), ("python", "py")


def blocks(text, languages):
    """The fenced blocks whose first word after the fence is one of ``languages``."""
    found = ((m["info"].split(), m["body"]) for m in FENCE.finditer(text))
    return [body for info, body in found if info and info[0] in languages]
