"""What a page of HTML would have a browser load."""

import re
from html.parser import HTMLParser

_NAMES = ("src", "href", "srcset", "data", "poster", "action", "background")


def outside(html):
    """The addresses outside of the file that it would load something from."""
    found = re.findall(r"<style.*?</style>", html, re.S)

    class Loads(HTMLParser):
        def handle_starttag(self, tag, attributes):
            values = dict(attributes)
            found.extend(f"url({values[name]})" for name in _NAMES if values.get(name))
            found.append(values.get("style") or "")

    Loads().feed(html)
    addresses = re.findall(r"(?:url\(|@import)\s*['\"]?([^'\");]+)", "\n".join(found))
    return [address for address in addresses if not address.startswith(("data:", "#"))]
