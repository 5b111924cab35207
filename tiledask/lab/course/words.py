"""Texts of data/questions.json and data/ladder.json, filled with the names of their sums.

{whole:bytes}   208 GB       {few:count GPU}    7 GPUs          {widths:shares}        32 or 33
{used:%.1f}     72.7 %       {fits:fit|fail}    yes, or no      {size:holds 40000}     2 kB left
{names:list}    a, b         {layout:brief}     dp 4 x tp 2     {names:some , }        1, 2, ..., 9
{times:and}     3, 5 and 2   {times:sum}        3 + 5 = 8       {share:percent}        27.3 %
"""

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import Formatter
from typing import Any

from tiledask.plan.fitting.fit import Fit
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.units import format_bytes, format_percent, format_seconds

__all__ = ["brief", "count", "each_of", "filled", "lines_of", "listed", "looked_up", "shares"]
__all__ += ["some", "total"]


def shares(of: Sequence[int]) -> str:
    """How much each has, where it may not be the same.

    >>> shares([3, 3, 2, 2]), shares([16, 16]), shares((2, 1, 4))
    ('2 or 3', '16', '1 to 4')
    """
    least, most = min(of), max(of)
    return str(most) if least == most else f"{least} {'or' if most == least + 1 else 'to'} {most}"


def count(n: int, what: str) -> str:
    """``n`` of them.

    >>> count(1, "GPU"), count(5952380, "column")
    ('1 GPU', '5,952,380 columns')
    """
    return f"{n:,} {what}{'s' * (n != 1)}"


def some(names: Sequence[object], between: str = ", ", most: int = 6) -> str:
    """All of them, or the first and the last of many.

    >>> some(["a", "b"]), some(range(1, 10))
    ('a, b', '1, 2, 3, ..., 9')
    """
    return between.join(map(str, names if len(names) <= most else [*names[:3], "...", names[-1]]))


def listed(values: Iterable[object]) -> str:
    """Values in a sentence, numbers with six digits at most.

    >>> listed([3, 5, 2])
    '3, 5 and 2'
    """
    *words, last = [f"{v:.6g}" if isinstance(v, int | float) else str(v) for v in values]
    return f"{', '.join(words)} and {last}" if words else last


def total(values: Sequence[float]) -> str:
    """The sum, written out, and what it makes.

    >>> total([3, 5, 2]), total([3])
    ('3 + 5 + 2 = 10', '3')
    """
    whole = f" = {sum(values):.6g}" * (len(values) > 1)
    return " + ".join(f"{value:.6g}" for value in values) + whole or "0"


def holds(size: float, memory: str) -> str:
    """Whether states of that size have memory enough.

    >>> holds(60e9, "80e9"), holds(40e9, "40e9"), holds(60e9, "40e9")
    ('20 GB left', 'filled to the last byte', '20 GB too much')
    """
    left = float(memory) - size
    if not left:
        return "filled to the last byte"
    return f"{format_bytes(abs(left))} {'left' if left > 0 else 'too much'}"


def brief(layout: Layout) -> str:
    """The degrees of a layout and what saves memory.

    >>> brief(Layout(dp=4, tp=2, zero=3, recompute="full")), brief(Layout())
    ('dp 4 x tp 2, ZeRO-3, recompute full', 'one GPU')
    """
    degrees = {"dp": layout.dp, "tp": layout.tp, "pp": layout.pp}
    split = " x ".join(f"{name} {n}" for name, n in degrees.items() if n > 1) or "one GPU"
    chunks = f", interleave {layout.interleave}" if layout.interleave > 1 else ""
    zero = f", ZeRO-{layout.zero}" if layout.zero else ""
    again = f", recompute {layout.recompute}" if layout.recompute != "none" else ""
    return f"{split}{chunks}{zero}{again}"


def verdict(fit: Fit) -> str:
    """What `tiledask fit` says of everything counted, and of which bytes."""
    whole, least = format_bytes(fit.capacity), format_bytes(fit.memory.peak)
    if fit.verdict != "tight":
        return f"{fit.verdict}, {format_bytes(fit.expected)} needed of {whole}"
    more = f"{least} before overhead, {format_bytes(fit.expected)} with it"
    return f"tight (it may or may not fit {whole}: {more})"


FORMS: dict[str, Any] = {
    "bytes": format_bytes,
    "seconds": format_seconds,
    "list": lambda names, between=", ": between.join(map(str, names)) or "none",
    "some": some,
    "and": listed,
    "sum": total,
    "percent": format_percent,
    "shares": shares,
    "count": count,
    "holds": holds,
    "brief": brief,
    "verdict": verdict,
}
"""What may stand behind a colon, beside Python's own: it takes the value, and what is behind it."""


class _Words(Formatter):
    def format_field(self, value: Any, spec: str) -> str:
        form, _, rest = spec.partition(" ")
        if "|" in spec:
            yes, no = spec.split("|")
            return yes if value else no
        if form in FORMS:
            found: str = FORMS[form](value, *([rest] if rest else []))
            return found
        return f"{100 * value:{spec[1:]}} %" if spec[:1] == "%" else format(value, spec)


def filled(text: str, names: Mapping[str, Any]) -> str:
    """The text with the names in it.

    >>> filled("{fits:{size:bytes} fit|no}, {n:count GPU}", {"fits": 1, "size": 4e9, "n": 2})
    '4 GB fit, 2 GPUs'
    """
    return _Words().vformat(text, (), names)


def lines_of(working: Sequence[str | Sequence[str]], names: Mapping[str, Any]) -> list[str]:
    """The lines of a working: a text is one; ["rows", text] is one for each of ``rows``, with its
    ``name``, or its number from 0, and ``it``.

    >>> lines_of(["{n} of:", ["rows", "{name} {it:g} s"]], {"n": 2, "rows": {"a": 1, "b": 2.5}})
    ['2 of:', 'a 1 s', 'b 2.5 s']
    """
    lines = []
    for each in working:
        if isinstance(each, str):
            lines.append(filled(each, names))
        else:
            lines += [filled(each[1], row) for row in each_of(each[0], names)]
    return [line for line in lines if line]


def each_of(rows: str, names: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The names for each of ``rows``: with its ``name``, or its number from 0, and ``it``."""
    found = looked_up(rows, names)
    pairs = found.items() if isinstance(found, Mapping) else enumerate(found)
    return (ChainMap({"name": name, "it": it}, {**names}) for name, it in pairs)


def looked_up(name: str, names: Mapping[str, Any]) -> Any:
    """The value of ``name``, such as "cut.sizes", a tuple as a list."""
    found = Formatter().get_field(name, (), names)[0]
    return [*found] if isinstance(found, tuple) else found
