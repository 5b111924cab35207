"""The command that a launch script runs, in words: read, and never run.

    ARGS=( --bf16  # in half precision
           --lr 1e-4 )                              -->  torchrun --nproc_per_node 8
    torchrun --nproc_per_node ${GPUS:-8} \\               pretrain_gpt.py --bf16 --lr 1e-4
        pretrain_gpt.py "${ARGS[@]}"

Variables, arrays, what is added to them, defaults and sums are filled in, as text; conditions and
counting loops are followed where it is known what they test. What is not, the output of a program
or an argument of the script, stays as it is written, ``$NAME``, for the reader of words to name.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from tiledask.errors import ConfigError

__all__ = ["flags_of", "launched"]

MOST_LETTERS = 1_000_000  # of what a variable holds
MOST_STEPS = 10_000  # statements that are followed, those of a loop again and again
_QUOTED = r""""(?:[^"\\]|\\.)*+"|'[^']*+'"""
_ARRAY = rf"\((?:[^()\"']|{_QUOTED})*+\)"
_TEST = r"\[\[\s(?:(?!\]\]).)*+\]\]|\(\((?:[^()]|\([^()]*+\))*+\)\)"
_STATEMENT = re.compile(
    rf"((?:\\.|{_TEST}|\d?>&\d|&>|[^\\;&|()\n\"']|{_QUOTED}|(?<==){_ARRAY})*+)"
    r"(&&|\|\||;;|[;&|()\n]|$)",
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
_COMMENT = r"""(?m)(\\.|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')|^[ \t]*#.*\n?|(?<=\s)#.*$"""
_SUM = r"\$\(\(((?:[^()\n]|\([^()\n]*\))*)\)\)"
_OPEN = str.maketrans("()", "‹›")
"""Brackets in a sum, which end no statement."""
_PRINTED = r"\$\(([^()]*)\)|`([^`]*)`"
_COUNTS = r"\s*\(\(\s*(\w+)\s*=(.*);(.*);\s*(?:\1\+\+|\+\+\1|\1\+=1)\s*\)\)"
_SIGNS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-le": "<=", "-gt": ">", "-ge": ">="}


def launched(text: str) -> tuple[list[str], list[str]]:
    """Words of the launched program's command, and a sentence for what is not certain of them.

    The command is the one with a ``.py`` file or a module in it and the most ``--flags`` and
    ``settings.of=it``; text without such a command, nor variables, is flags from end to end.
    ConfigError for quotes or arrays that are left open.

    >>> launched("N=4\\nA=(--x $N)\\nA+=(--y)\\npython train.py ${A[@]} --z $M")
    (['python', 'train.py', '--x', '4', '--y', '--z', '$M'], [])
    >>> launched("--x 1\\n--y")
    (['--x', '1', '--y'], [])
    """
    text = _plain(text)
    if not re.search(r"(?m)\.py\b|\s-m\s|^\s*\w+\+?=", text):
        return _words(text), []
    script = _Script()
    script.follow(text)
    program = re.compile(r"(?s)(?!\s*echo\s).*(\.py\b|\s-m\s)")
    programs = [each for each in script.commands if program.match(each[0])]
    if not programs:  # flags alone, or in variables of a script that others take in
        known = (each for each, _ in script.commands), script.variables.values()
        programs = [(" ".join(each), {*script.unsure}) for each in known]
    said = [len(re.findall(r"--\w|\s\+*[a-z]\w*\.[\w.]+=", each)) for each, _ in programs]
    command, names = programs[said.index(max(said))]
    notes = []
    like = sum(2 * each >= max(said) for each in said)
    if like > 1 and program.match(command):
        notes.append(f"of {like} commands like it the one with the most flags")
    if unsure := [name for name in script.unsure if name in names]:
        notes.append(f"the script's conditions are not judged: {', '.join(unsure)} as set first")
    words: list[str] = []
    for word in _words(command):  # one may be several: "--x 1" in an array, bash -c "..."
        words += _words(word) if re.match(r"(?s)--?[\w-]+\s|.*\.py\s", word) else [word]
    return words, notes


def flags_of(
    words: Sequence[str], launcher: Sequence[str] = ()
) -> tuple[str, dict[str, Any], list[str]]:
    """(the program, its flags by name, variables and scripts of which nothing is known) of the
    ``words`` of a command; of flags before the program those of its ``launcher`` stay.

    >>> flags_of("torchrun --nnodes 2 --rdzv-id 7 train.py --bf16 --micro-batch-size=4 $M".split())
    ('train', {'bf16': True, 'micro_batch_size': '4'}, ['$M'])
    """
    flags: dict[str, Any] = {}
    unset: list[str] = []
    name = program = ""
    for before, word in pairwise(["", *words]):
        word = re.sub(r"^(['\"])(.*)\1$", r"\2", word)  # quoted once more
        if match := re.match(r"--([A-Za-z][\w-]*):?(?:=(.*))?$", word, re.DOTALL):
            name = match[1].replace("-", "_")
            flags[name] = True if match[2] is None else match[2]
        elif not program and (word.endswith(".py") or (before == "-m" and "torch." not in word)):
            program, name, unset = PurePath(word).stem, "", []
            flags = {key: flags[key] for key in launcher if key in flags}
        elif re.fullmatch(r"\$\{\w+\[[@*]\]\}", word) or (
            flags.get(name) is not True and re.fullmatch(r"\$\{?\w+\}?|.*\.sh", word)
        ):
            unset.append(word)
        elif name and word != "-m":
            flags[name] = word if flags[name] is True else f"{flags[name]} {word}"
    return program, flags, unset


@dataclass
class _Block:
    """An open if, case or loop."""

    kind: str
    runs: bool | None = True  # what stands in it; None: that cannot be said
    over: bool = False  # an earlier branch ran, or may have
    about: tuple[str, ...] = ()  # the word of a case; what a loop counts, and its test
    pattern: str | None = None  # of a case, as far as it is read
    start: int = 0  # the loop's first statement


@dataclass
class _Script:
    """What a script sets, and the commands that it runs, with the names of which they are made."""

    variables: dict[str, str] = field(default_factory=dict)
    behind: dict[str, set[str]] = field(default_factory=dict)  # names of which a variable is made
    unsure: dict[str, None] = field(default_factory=dict)
    commands: list[tuple[str, set[str]]] = field(default_factory=list)
    blocks: list[_Block] = field(default_factory=lambda: [_Block("script")])
    held: bool | None = None  # the last test

    def follow(self, text: str) -> None:
        """Go through the statements, in the order in which they run."""
        statements, at, before = _STATEMENT.findall(text), 0, ""
        for _ in range(MOST_STEPS):
            if at >= len(statements):
                return
            words, sign = statements[at]
            at += 1
            if self.blocks[-1].pattern is None or words.strip() == "esac":
                while keyword := _KEYWORD.match(words):
                    words, at = self._turn(keyword[1], words[keyword.end() :], at)
            if (block := self.blocks[-1]).pattern is not None:
                block.pattern += words + sign
                if sign == ")":
                    masks = [each.strip(" \n\"'") for each in block.pattern[:-1].split("|")]
                    same = any(fnmatchcase(block.about[0], each) for each in masks)
                    self.held, block.pattern = None if "$" in block.about[0] else same, None
                    self._turn("then", "", at)
                continue
            skipped = (before, self.held) in (("&&", False), ("||", True))
            runs = [block.runs for block in self.blocks]
            if words.strip() and not skipped and False not in runs:
                doubted = before in ("&&", "||") and self.held is None
                self.held = self._do(words.strip(), None not in runs and not doubted)
            before = sign
            if sign == ";;" and block.kind == "case":
                self.blocks[-1].pattern = ""
        raise ConfigError(f"a script of more than {MOST_STEPS:,} steps is not followed")

    def _turn(self, word: str, words: str, at: int) -> tuple[str, int]:
        """Open, turn or end a block at its keyword: what is left of its statement, and the next."""
        block = self.blocks[-1]
        if word in ("if", "while", "until", "for", "case"):
            self.blocks.append(block := _Block(word))
            if word == "case":
                subject, _, words = words.partition(" in")
                block.about, block.pattern = (self._filled(subject).strip(" \"'"),), ""
            elif counts := re.match(_COUNTS, words):
                self.variables[counts[1]] = _sum(counts[2], self.variables)
                block.about, words = (counts[1], counts[3]), ""
            elif word == "for":
                name, _, first, *more = [*_words(self._filled(words)), "", "", ""]
                self.variables[name] = first or f"${name}"
                self.unsure |= {name: None} if more[2:] else {}
                words = ""
        elif word == "then":  # or a branch of a case
            block.runs = False if block.over else self.held
            block.over = block.over or self.held is not False
        elif word in ("elif", "else"):
            block.runs = not block.over
        elif word == "do" and len(block.about) > 1:
            block.runs, block.start = self._holds(f"(({block.about[1]}))"), at - 1
        elif word == "do" and block.kind != "for":
            block.runs = None if self.held in (None, block.kind == "while") else False
        elif word == "done" and len(block.about) > 1 and block.runs:
            name, at = block.about[0], block.start
            self.variables[name] = _sum(f"{name}+1", self.variables)
        elif word in ("fi", "esac", "done") and len(self.blocks) > 1:
            self.blocks.pop()
        return words, at

    def _do(self, words: str, sure: bool) -> bool | None:
        """A test, assignments or a command: whether it holds. What nobody is ``sure`` to happen
        sets only what is not set, or adds to it."""
        if re.fullmatch(rf"\[\s.*\s\]|{_TEST}", words, re.DOTALL):
            return self._holds(words)
        words = re.sub(r"\"(\$\{?\w+(?:\[[@*]\])?\}?)\"", r"\1", words)  # is split into words too
        if printed := re.match(r"(?s)printf\s+-v\s+(\w+)\s+(.*)", words):
            form, *each = _words(self._filled(printed[2]))
            words = f'{printed[1]}="{form.replace("%s", " ".join(each))}"'
        flags = re.split(r"\.py\b", words)[-1]  # not what the launcher has
        named = {found["name"] or found["bare"] for found in _VARIABLE.finditer(flags)}
        named = named.union(*(self.behind.get(name, ()) for name in named))
        while found := _ASSIGNMENT.match(words):
            words, name, value = words[found.end() :], found["name"], found["value"]
            between = " " * value.startswith("(")
            if re.fullmatch(rf"{_ARRAY}|{_QUOTED}", value, re.DOTALL):
                value = value[1:-1]
            before, value = self.variables.get(name), self._filled(value)
            if found["adds"] and before is not None:
                value = f"{before}{between}{value}"
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
        words = _words(self._filled(inner))
        if words and words[0] in ("-z", "-n"):
            return (words[-1] in ("", words[0]) or "$" in words[-1]) == (words[0] == "-z")
        if any("$" in word for word in words):
            return None
        match words:
            case [one]:
                return one != ""
            case [one, "=" | "==" | "!=" as sign, other]:
                return fnmatchcase(one, other) == (sign != "!=")
            case [one, sign, other] if sign in _SIGNS:
                return self._holds(f"(({one} {_SIGNS[sign]} {other}))")
        return None

    def _filled(self, text: str) -> str:
        """``text`` with what the variables in it hold; a name that none has stays."""
        pieces, at = [], 0
        for found in _VARIABLE.finditer(text):
            usual = found[0] if found["default"] is None else self._filled(found["default"])
            held = self.variables.get(found["name"] or found["bare"], usual)
            pieces += [text[at : found.start()], held]
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
    text = re.sub(_COMMENT, lambda found: found[1] or "", text)
    text = re.sub(r"\\[ \t]*\n", " ", text)
    text = re.sub(_SUM, lambda found: f"$[{''.join(found[1].split()).translate(_OPEN)}]", text)
    while printed := re.search(_PRINTED, text):
        echo = re.fullmatch(r"(?s)(?:[^;]*;)?\s*echo\s+([^;|&<>]*)", printed[1] or printed[2] or "")
        text = text.replace(printed[0], echo[1].strip(" \"'") if echo else "$<command>")
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
    text = text.translate({new: old for old, new in _OPEN.items()})
    text = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda found: variables.get(found[1], "$"), text)
    if len(text) > 100 or not re.fullmatch(r"(?s)(?!.*(\*\*|<<|>>))[\d\s+*/%()<>=!-]+", text):
        return "$<sum>"
    try:
        return str(int(eval(text.replace("/", "//"), {"__builtins__": {}})))  # of signs: no powers
    except (SyntaxError, ZeroDivisionError, TypeError):
        return "$<sum>"
