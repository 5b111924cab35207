"""The command that a launch script runs, in words: read, and never run.

    ARGS=( --bf16  # in half precision
           --lr 1e-4 )                              -->  torchrun --nproc_per_node 8
    torchrun --nproc_per_node ${GPUS:-8} \\               pretrain_gpt.py --bf16 --lr 1e-4
        pretrain_gpt.py "${ARGS[@]}"

Variables, arrays, what is added to them, defaults and sums are filled in, as text. A variable that
the script does not set stays as it is written, ``$NAME``, for the reader of the words to name.
"""

import re
import shlex

from tiledask.errors import ConfigError

__all__ = ["launched"]

MOST_LETTERS = 1_000_000
"""Of what a variable holds."""
_QUOTED = r""""(?:[^"\\]|\\.)*"|'[^']*'"""
_ARRAY = rf"\((?:[^()\"']|{_QUOTED})*\)"
_STATEMENT = re.compile(rf"(?:\\.|[^\\;&|()\n\"']|{_QUOTED}|(?<==){_ARRAY})+", re.DOTALL)
_KEYWORD = re.compile(
    r"\s*(then|else|elif|do|\{|time|exec|while|for|if|case|fi|esac|export|local|declare|readonly"
    r"|typeset)(?=\s|$)(?:\s+-\w+(?=\s))?"
)
_ASSIGNMENT = re.compile(
    rf"\s*(?P<name>[A-Za-z_]\w*)(?P<adds>\+?)=(?P<value>(?:{_ARRAY}|{_QUOTED}|[^\s\"'(])*)"
)
_VARIABLE = re.compile(
    r"\$\{(?P<name>\w+)(?:\[[@*]\])?(?::?[-=](?P<default>[^}]*))?\}|\$(?P<bare>\w+)"
)
_DEPTH = {"if": 1, "case": 1, "fi": -1, "esac": -1}


def launched(text: str) -> tuple[list[str], tuple[str, ...]]:
    """Words of the launched program's command, and variables that a condition may set otherwise.

    The command is the one with a ``.py`` file in it and the most ``--flags``; text without such
    a command, nor variables, is flags from end to end. ConfigError for quotes or arrays left open.

    >>> launched("N=4\\nA=(--x $N)\\nA+=(--y)\\npython train.py ${A[@]} --z $M")
    (['python', 'train.py', '--x', '4', '--y', '--z', '$M'], ())
    >>> launched("--x 1\\n--y")
    (['--x', '1', '--y'], ())
    """
    if ".py" not in text and not re.search(r"(?m)^\s*\w+\+?=", text):
        return _words(text.replace("\\\n", " ")), ()
    variables: dict[str, str] = {}
    commands: list[list[str]] = []
    unsure: dict[str, None] = {}
    depth = 0
    for statement in _STATEMENT.findall(_plain(text)):
        while keyword := _KEYWORD.match(statement):
            depth += _DEPTH.get(keyword[1], 0)
            statement = statement[keyword.end() :]
        while found := _ASSIGNMENT.match(statement):
            statement, name = statement[found.end() :], found["name"]
            value = found["value"]
            if re.fullmatch(rf"{_ARRAY}|{_QUOTED}", value, re.DOTALL):
                value = value[1:-1]
            before, value = variables.get(name), _filled(value, variables)
            after = f"{before} {value}" if found["adds"] and before is not None else value
            if depth and before != after:
                unsure[name] = None
            if not depth or before is None or after.startswith(before):
                variables[name] = after
        words = _words(_filled(statement, variables))
        commands.append([w for word in words for w in (_words(word) if ".py " in word else [word])])
    programs = [c for c in commands if any(word.endswith(".py") for word in c)]
    if programs:
        return max(programs, key=lambda c: sum(word.startswith("--") for word in c)), (*unsure,)
    words = [word for command in commands for word in command]
    if not any(word.startswith("--") for word in words):
        words = [word for held in variables.values() for word in _words(held)]
    return words, (*unsure,)


def _plain(text: str) -> str:
    """A script without documents, comments and continued lines, and with $[...] for its sums."""
    text = re.sub(r"<<-?\s*(['\"]?)(\w+)\1.*?^\s*\2\s*$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"(?m)(^|(?<=\s))#.*$", "", text.replace("\r", ""))
    text = re.sub(r"\\\s*\n", " ", text)
    text = re.sub(r"\$\(\(([^()\n]*)\)\)", r"$[\1]", text)
    text = re.sub(r"\$\([^()\n]*\)|`[^`\n]*`", "$COMMAND", text)
    if re.search(r"[\"']|=\(", re.sub(rf"\\.|=?{_ARRAY}|{_QUOTED}", "", text, flags=re.DOTALL)):
        raise ConfigError(
            "the flags cannot be read as a shell reads them: quotes or brackets are left open"
        )
    return text


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        raise ConfigError(f"the flags cannot be read as a shell reads them: {error}") from None


def _filled(text: str, variables: dict[str, str]) -> str:
    """``text`` with what the variables in it hold; a name that none has stays."""

    def value(found: re.Match[str]) -> str:
        name, default = found["name"] or found["bare"], found["default"]
        if name in variables:
            return variables[name]
        return f"${name}" if default is None else _filled(default, variables)

    # what stands quoted alone, "${ARGS[@]}", is split into words all the same
    text = re.sub(r"\"(\$\{?\w+(?:\[[@*]\])?\}?)\"", r"\1", text)
    filled = _VARIABLE.sub(value, text)
    if len(filled) > MOST_LETTERS:
        raise ConfigError(f"a variable of the script holds more than {MOST_LETTERS:,} letters")
    return re.sub(r"\$\[(.*?)\]", lambda found: _sum(found[1], variables), filled)


def _sum(text: str, variables: dict[str, str]) -> str:
    """The value of $((...)): whole numbers, names of variables, + - * / % and nothing else."""
    text = re.sub(r"[A-Za-z_]\w*", lambda found: variables.get(found[0], "$"), text)
    if len(text) > 100 or "**" in text or not re.fullmatch(r"[\d\s+*/%()-]+", text):
        return "$SUM"
    try:
        return str(eval(text.replace("/", "//"), {"__builtins__": {}}))  # digits and signs alone
    except (SyntaxError, ZeroDivisionError, TypeError):
        return "$SUM"
