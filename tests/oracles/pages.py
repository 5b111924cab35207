"""What a page of HTML would have a browser load."""

import re
from html.parser import HTMLParser

__all__ = ["outside"]


class _Loads(HTMLParser):
    """Every address that a browser would load something from."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        names = ("src", "href", "srcset", "data", "poster", "action", "background")
        self.found += [values[name] for name in names if values.get(name)]
        self.found += re.findall(r"url\(\s*['\"]?([^'\")]+)", values.get("style") or "")


def outside(html: str) -> list[str]:
    """The addresses outside of the file that it would load something from."""
    styles = "".join(re.findall(r"<style.*?</style>", html, re.S))
    found = _Loads(html).found + re.findall(r"(?:url\(|@import)\s*['\"]?([^'\");]+)", styles)
    return [address for address in found if not address.startswith(("data:", "#"))]
