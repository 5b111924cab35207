"""The command that a launch script runs, in words: read, and never run.

    ARGS=( --bf16  # in half precision
           --lr 1e-4 )                              -->  torchrun --nproc_per_node 8
    torchrun --nproc_per_node ${GPUS:-8} \\               pretrain_gpt.py --bf16 --lr 1e-4
        pretrain_gpt.py "${ARGS[@]}"

Variables, arrays, what is added to them, defaults and sums are filled in, as text; conditions and
counting loops are followed where it is known what they test. What is not, the output of a program
or an argument of the script, stays as it is written, ``$NAME``, for the reader of the words to name.
"""

import re
import shlex
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from tiledask.errors import ConfigError

__all__ = ["launched"]

MOST_LETTERS = 1_000_000
"""Of what a variable holds."""
MOST_STEPS = 100_000
"""Statements that are followed, those of a loop again and again."""
_QUOTED = r""""(?:[^"\\]|\\.)*+"|'[^']*+'"""
_ARRAY = rf"\((?:[^()\"']|{_QUOTED})*+\)"
_TEST = r"\[\[\s(?:(?!\]\]).)*+\]\]|\(\((?:[^()]|\([^()]*+\))*+\)\)"
_STATEMENT = re.compile(
    rf"(?P<words>(?:\\.|{_TEST}|\d?>&\d|&>|[^\\;&|()\n\"']|{_QUOTED}|(?<==){_ARRAY})*+)"
    r"(?P<sign>&&|\|\||;;|[;&|()\n]|$)",
    re.DOTALL,
)
_KEYWORD = re.compile(
    r"\s*(then|else|elif|do|\{|time|exec|while|until|for|if|case|fi|esac|done|export|local|declare"
    r"|readonly|typeset)(?=\s|$)(?:\s+-\w+(?=\s))?"
)
_ASSIGNMENT = re.compile(
    rf"\s*(?P<name>[A-Za-z_]\w*)(?P<adds>\+?)=(?P<value>(?:{_ARRAY}|{_QUOTED}|[^\s\"'(])*)"
)
_VARIABLE = re.compile(
    r"\$\{(?P<name>\w+)(?:\[[@*]\])?(?::?[-=](?P<default>(?:[^{}]|\{[^{}]*\})*))?\}|\$(?P<bare>\w+)"
)
_DOCUMENT = re.compile(r"(?ms)(?<!<)<<-?\s*(['\"]?)(\w+)\1([^\n]*\n)(.*?)^\s*\2\s*$")
_LAUNCHES = re.compile(r"(?m)^\s*(srun|torchrun|python3?|deepspeed|mpirun|bash|ray)\s")
_COMMENT = re.compile(rf"(?ms)(\\.|{_QUOTED})|^[ \t]*#[^\n]*\n?|(?<=\s)#[^\n]*")
_SUM = r"\$\(\(((?:[^()\n]|\([^()\n]*\))*)\)\)"
_PRINTED = r"\$\(([^()]*)\)|`([^`]*)`"
_COUNTS = r"\s*(\w+)\s*(?:(\+\+|--)|([-+]?)=(?!=)(.*))"
_SIGNS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


def launched(text: str) -> tuple[list[str], tuple[str, ...]]:
    """Words of the launched program's command, and variables of it that a condition which cannot be
    judged, or a loop, may set otherwise.

    The command is the one with a ``.py`` file or a module in it and the most ``--flags``; text
    without such a command, nor variables, is flags from end to end. ConfigError for quotes or
    arrays that are left open.

    >>> launched("N=4\\nA=(--x $N)\\nA+=(--y)\\npython train.py ${A[@]} --z $M")
    (['python', 'train.py', '--x', '4', '--y', '--z', '$M'], ())
    >>> launched("--x 1\\n--y")
    (['--x', '1', '--y'], ())
    """
    text = _plain(text)
    if not re.search(r"(?m)\.py\b|\s-m\s|^\s*\w+\+?=", text):
        return _words(text), ()
    script = _Script()
    script.follow(text)
    programs = [each for each in script.commands if re.search(r"\.py\b|\s-m\s", each[0])]
    if programs:
        command, names = max(programs, key=lambda each: each[0].count("--"))
    else:
        command, names = " ".join(each for each, _ in script.commands), {*script.unsure}
        command = command if "--" in command else " ".join(script.variables.values())
    words: list[str] = []
    for word in _words(command):  # one may be several: "--x 1" in an array, bash -c "..."
        words += _words(word) if re.match(r"(?s)--[\w-]+\s|.*\.py\s", word) else [word]
    return words, tuple(name for name in script.unsure if name in names)


@dataclass
class _Block:
    """An open if, case or loop."""

    kind: str
    runs: bool | None = True  # what stands in it; None: that cannot be said
    over: bool | None = False  # an earlier branch ran
    about: tuple[str, ...] = ()  # the word of a case; test and step of a loop that counts
    pattern: str | None = None  # of a case, as far as it is read
    start: int = 0  # the loop's first statement

    def branch(self, held: bool | None) -> None:
        """A branch begins that runs if ``held``, and none before it did."""
        self.runs = False if self.over else None if self.over is None and held else held
        self.over = self.over or held or (None if None in (self.over, held) else False)


@dataclass
class _Script:
    """What a script sets, and the commands that it runs, with the names of which they are made."""

    variables: dict[str, str] = field(default_factory=dict)
    behind: dict[str, set[str]] = field(default_factory=dict)  # names of which a variable is made
    unsure: dict[str, None] = field(default_factory=dict)
    commands: list[tuple[str, set[str]]] = field(default_factory=list)
    blocks: list[_Block] = field(default_factory=list)
    held: bool | None = None  # the last test

    def follow(self, text: str) -> None:
        """Go through the statements, in the order in which they run."""
        statements = [(found["words"], found["sign"]) for found in _STATEMENT.finditer(text)]
        at, before = 0, ""
        for _ in range(MOST_STEPS):
            if at >= len(statements):
                return
            (words, sign), case = statements[at], self.blocks[-1] if self.blocks else None
            at += 1
            if case and case.pattern is not None and words.strip() != "esac":
                case.pattern += words + sign
                if sign == ")":
                    masks = [each.strip(" \n\"'") for each in case.pattern[:-1].split("|")]
                    known = "$" not in case.about[0]
                    one_does = any(fnmatchcase(case.about[0], each) for each in masks)
                    case.branch(one_does if known else None)
                    case.pattern = None
                continue
            while keyword := _KEYWORD.match(words):
                words, at = self._turn(keyword[1], words[keyword.end() :], at)
            skipped = before == "&&" and self.held is False or before == "||" and self.held is True
            runs = [block.runs for block in self.blocks]
            if words.strip() and not skipped and False not in runs:
                doubted = before in ("&&", "||") and self.held is None
                self.held = self._do(words.strip(), None not in runs and not doubted)
            before = sign
            if sign == ";;" and self.blocks:
                self.blocks[-1].pattern = ""
        raise ConfigError(f"a script of more than {MOST_STEPS:,} steps is not followed")

    def _turn(self, word: str, words: str, at: int) -> tuple[str, int]:
        """Open, turn or end a block at its keyword: what is left of its statement, and the next."""
        block = self.blocks[-1] if self.blocks else _Block("")
        if word in ("if", "while", "until", "for", "case"):
            self.blocks.append(block := _Block(word))
            if word == "case":
                found = re.match(r"(?s)\s*(.*?)\s+in(?:\s+(.*))?$", words)
                block.about = (self._filled(found[1] if found else "").strip("\"'"),)
                block.pattern = ""
                return "", at
            if counts := re.match(r"(?s)\s*\(\((.*);(.*);(.*)\)\)", words):
                self._do(f"(({counts[1]}))", True)
                block.about, words = counts.groups()[1:], ""
            elif word == "for" and (found := re.match(r"(?s)\s*(\w+)(?:\s+in\s+(.*))?", words)):
                each = _words(self._filled(found[2] or ""))
                self.variables[found[1]] = each[0] if each else f"${found[1]}"
                self.unsure |= {found[1]: None} if len(each) > 1 else {}
                words = ""
        elif word == "then":
            block.branch(self.held)
        elif word == "elif":
            block.runs = block.over is not True
        elif word == "else":
            block.runs = None if block.over is None else not block.over
        elif word == "do" and block.about:
            block.runs, block.start = self._holds(f"(({block.about[0]}))"), at - 1
        elif word == "do" and block.kind in ("while", "until"):
            block.runs = None if self.held in (None, block.kind == "while") else False
        elif word == "done" and block.about and block.runs:
            self._do(f"(({block.about[1]}))", True)
            at = block.start
        elif word in ("fi", "esac", "done") and self.blocks:
            self.blocks.pop()
        return words, at

    def _do(self, words: str, sure: bool) -> bool | None:
        """A test, assignments or a command: whether it holds. What nobody is ``sure`` to happen
        sets only what is not set, or adds to it."""
        if counts := re.fullmatch(rf"\(\({_COUNTS}\)\)", words, re.DOTALL):
            name, step, adds, value = counts.groups()
            old = self.variables.get(name, "0")
            value = f"{old} {step[0]} 1" if step else f"{old} {adds} ({value})" if adds else value
            words = f"{name}={_sum(value, self.variables)}"
        if re.fullmatch(rf"\[\s.*\s\]|{_TEST}", words, re.DOTALL):
            return self._holds(words)
        if printed := re.match(r"(?s)printf\s+-v\s+(\w+)\s+(.*)", words):
            form, *each = _words(self._filled(printed[2]))
            words = f'{printed[1]}="{form.replace("%s", " ".join(each))}"'
        flags = re.split(r"\.py\b", words)[-1]  # not what the launcher has
        named = {found["name"] or found["bare"] for found in _VARIABLE.finditer(flags)}
        named = named.union(*(self.behind.get(name, ()) for name in named))
        while found := _ASSIGNMENT.match(words):
            words, name, value = words[found.end() :], found["name"], found["value"]
            among = value.startswith("(")
            if re.fullmatch(rf"{_ARRAY}|{_QUOTED}", value, re.DOTALL):
                value = value[1:-1]
            before, value = self.variables.get(name), self._filled(value)
            if found["adds"] and before is not None:
                value = f"{before}{' ' * among}{value}"
            if not sure and before != value:
                self.unsure[name] = None
            if sure or before is None or "$" in before or value.startswith(before):
                self.variables[name] = value
            self.behind[name] = self.behind.get(name, set()) | named | {name}
        if words.strip():
            command = re.sub(r"\s(\d|&)?>>?\s*[^\s;|&<>]+|\d?>&\d", " ", self._filled(words))
            self.commands.append((command, named))
        return {"": True, "true": True, ":": True, "false": False}.get(words.strip())

    def _holds(self, test: str) -> bool | None:
        """Whether [ a test ], [[ a test ]] or ((a sum)) holds; None: that cannot be said."""
        if test.startswith("(("):
            found = _sum(test[2:-2], self.variables)
            return None if "$" in found else found != "0"
        inner = test.strip("[] \n").replace("$#", "0")  # as it is called without arguments
        for sign, decides in (("||", True), ("&&", False)):
            if sign in inner:
                parts = [self._holds(f"[ {part} ]") for part in inner.split(sign)]
                return decides if decides in parts else None if None in parts else not decides
        if inner.startswith("! "):
            held = self._holds(f"[ {inner[2:]} ]")
            return None if held is None else not held
        words = _words(self._filled(inner, kept=True))
        if any("$" in word for word in words):
            return None
        match words:
            case ["-z"] | ["-z" | "-n", _] | [_]:
                return (words[-1] in ("", "-z")) == (words[0] == "-z")
            case [one, "=" | "==", other]:
                return fnmatchcase(one, other)
            case [one, "!=", other]:
                return not fnmatchcase(one, other)
            case [one, sign, other] if sign in _SIGNS:
                return self._holds(f"(({one} {_SIGNS[sign]} {other}))")
        return None

    def _filled(self, text: str, kept: bool = False) -> str:
        """``text`` with what the variables in it hold; a name that none has stays. ``kept``: the
        quotes about a variable alone too; else what it holds is split into words all the same."""
        if not kept:
            text = re.sub(r"\"(\$\{?\w+(?:\[[@*]\])?\}?)\"", r"\1", text)
        pieces, at = [], 0
        for found in _VARIABLE.finditer(text):
            name, default = found["name"] or found["bare"], found["default"]
            usual = found[0] if default is None else self._filled(default)
            pieces += [text[at : found.start()], self.variables.get(name, usual)]
            at = found.end()
        filled = "".join([*pieces, text[at:]])
        if len(filled) > MOST_LETTERS:
            raise ConfigError(f"a variable of the script holds more than {MOST_LETTERS:,} letters")
        return re.sub(r"\$\[(.*?)\]", lambda found: _sum(found[1], self.variables), filled)


def _plain(text: str) -> str:
    """A script without comments, continued lines and documents, but for those that launch; with
    $[...] for its sums, and what $(echo ...) prints."""
    text = _DOCUMENT.sub(
        lambda found: found[3] + found[4] * bool(_LAUNCHES.search(found[4])), text.replace("\r", "")
    )
    inside = r"(?m)^[ \t]*#.*\n?|(?<=\s)#.*$"  # a quoted text of several lines has comments too
    text = _COMMENT.sub(lambda found: re.sub(inside, "", found[1]) if found[1] else "", text)
    text = re.sub(r"\\[ \t]*\n", " ", text)
    text = re.sub(_SUM, lambda found: f"$[{''.join(found[1].split())}]", text)
    while (printed := re.search(_PRINTED, text)) is not None:
        echo = re.fullmatch(r"(?s)(?:[^;]*;)?\s*echo\s+([^;|&<>]*)", printed[1] or printed[2] or "")
        text = text.replace(printed[0], echo[1].strip(" \"'") if echo else "$COMMAND")
    if re.search(r"[\"']|=\(", re.sub(rf"\\.|=?{_ARRAY}|{_QUOTED}", "", text, flags=re.DOTALL)):
        raise ConfigError(
            "the flags cannot be read as a shell reads them: quotes or brackets are left open"
        )
    return text


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"the flags cannot be read as a shell reads them: {error}") from None


def _sum(text: str, variables: dict[str, str]) -> str:
    """The value of $((...)): whole numbers, names of variables, signs and nothing else."""
    text = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda found: variables.get(found[1], "$"), text)
    if len(text) > 100 or "**" in text or not re.fullmatch(r"[\d\s+*/%()<>=!-]+", text):
        return "$SUM"
    try:
        return str(int(eval(text.replace("/", "//"), {"__builtins__": {}})))  # digits and signs
    except (SyntaxError, ZeroDivisionError, TypeError):
        return "$SUM"
