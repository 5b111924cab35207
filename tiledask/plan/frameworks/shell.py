"""The command that a launch script runs, in words: read, and never run.

    ARGS=( --bf16  # in half precision
           --lr 1e-4 )                              -->  torchrun --nproc_per_node 8
    torchrun --nproc_per_node ${GPUS:-8} \\               pretrain_gpt.py --bf16 --lr 1e-4
        pretrain_gpt.py "${ARGS[@]}"

Variables, arrays, what is added to them, defaults and sums are filled in. A variable that the
script does not set stays as it is written, ``$NAME``, for the reader of the words to name.
"""

import re
import shlex
from collections.abc import Iterator

from tiledask.errors import ConfigError

__all__ = ["launched"]

MOST_LETTERS = 1_000_000
"""Of what a variable holds."""
_VARIABLE = re.compile(
    r"\$\{(?P<name>\w+)(?:\[[@*]\])?(?::?[-=](?P<default>[^}]*))?\}|\$(?P<bare>\w+)"
)
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_]\w*)(?P<adds>\+?)=(?P<value>.*)", re.DOTALL)
_DECLARES = frozenset({"export", "local", "declare", "readonly", "typeset", "set", "unset"})
_KEYWORDS = frozenset({"then", "else", "elif", "do", "{", "time", "exec", "if", "while", "for"})
_BEGINS, _ENDS = frozenset({"if", "case"}), frozenset({"fi", "esac"})
_Variables = dict[str, list[str]]


def launched(text: str) -> tuple[list[str], tuple[str, ...]]:
    """Words of the launched program's command, and variables that a condition may set otherwise.

    The command is the one with a ``.py`` file in it and the most ``--flags``; text without such
    a command, nor variables, is flags from end to end. ConfigError for quotes that are left open.

    >>> launched("N=4\\nA=(--x $N)\\nA+=(--y)\\npython train.py ${A[@]} --z $M")
    (['python', 'train.py', '--x', '4', '--y', '--z', '$M'], ())
    >>> launched("--x 1\\n--y")
    (['--x', '1', '--y'], ())
    """
    if ".py" not in text and not re.search(r"(?m)^\s*\w+\+?=", text):
        return _words(text.replace("\\\n", " ")), ()
    variables: _Variables = {}
    commands: list[list[str]] = []
    unsure: dict[str, None] = {}
    depth = 0
    for words in _statements(text):
        while words and words[0] in _KEYWORDS | _BEGINS | _ENDS:
            keyword = words.pop(0)
            depth += (keyword in _BEGINS) - (keyword in _ENDS)
        for name, after in _assigned(words, variables):
            before = variables.get(name)
            if depth and before != after:
                unsure[name] = None
            if not depth or before is None or after[: len(before)] == before:
                variables[name] = after
        filled = (_filled(word, variables) for word in words)
        commands.append([part for word in filled for part in _split(word)])
    programs = [c for c in commands if any(word.endswith(".py") for word in c)]
    if programs:
        return max(programs, key=lambda c: sum(word.startswith("--") for word in c)), (*unsure,)
    words = [word for command in commands for word in command]
    if not any(word.startswith("--") for word in words):
        words = [part for held in variables.values() for word in held for part in _split(word)]
    return words, (*unsure,)


def _assigned(words: list[str], variables: _Variables) -> Iterator[tuple[str, list[str]]]:
    """(name, what it then holds) of the assignments that ``words`` begin with; they are taken
    out of it."""
    declares = bool(words) and words[0] in _DECLARES
    while words:
        found = _ASSIGNMENT.fullmatch(words[0])
        if not found and not (declares and (words[0] in _DECLARES or words[0].startswith("-"))):
            return
        del words[0]
        if found is None:
            continue
        value = [found["value"]]
        if words and words[0] == "(":
            end = words.index(")")
            value = words[1:end]
            del words[: end + 1]
        held = variables.get(found["name"], []) if found["adds"] else []
        yield found["name"], held + [_filled(word, variables) for word in value]


def _statements(text: str) -> Iterator[list[str]]:
    """The words of each statement; those of an array stand between "(" and ")"."""
    text = re.sub(r"<<-?\s*(['\"]?)(\w+)\1.*?^\s*\2\s*$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"(?m)(^|(?<=\s))#.*$", "", text.replace("\r", ""))
    text = re.sub(r"\\\s*\n", " ", text)
    text = re.sub(r"\$\(\(([^()\n]*)\)\)", lambda sum_: f"$[{''.join(sum_[1].split())}]", text)
    text = re.sub(r"\$\([^()\n]*\)|`[^`\n]*`", "$COMMAND", text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t", "", True
    tokens = _words(lexer)
    statement: list[str] = []
    in_array = False
    for token in tokens:
        marks = token if set(token) <= set(";&|()\n") else ""
        if not marks:
            statement.append(token)
        for mark in marks:
            if mark == "(" and statement and statement[-1].endswith("="):
                in_array = True
                statement.append(mark)
            elif mark == ")" and in_array:
                in_array = False
                statement.append(mark)
            elif not in_array and statement:
                yield statement
                statement = []
    if in_array:
        statement.append(")")
    yield statement


def _words(source: str | shlex.shlex) -> list[str]:
    try:
        return shlex.split(source, comments=True) if isinstance(source, str) else list(source)
    except ValueError as error:
        raise ConfigError(f"the flags cannot be read as a shell reads them: {error}") from None


def _filled(word: str, variables: _Variables) -> str:
    """``word`` with what the variables in it hold; a name that none has stays."""

    def value(found: re.Match[str]) -> str:
        name = found["name"] or found["bare"]
        if name in variables:
            return " ".join(variables[name])
        default = found["default"]
        return f"${name}" if default is None else _filled(default, variables)

    filled = _VARIABLE.sub(value, word)
    if len(filled) > MOST_LETTERS:
        raise ConfigError(f"a variable of the script holds more than {MOST_LETTERS:,} letters")
    return re.sub(r"\$\[(.*?)\]", lambda found: _sum(found[1], variables), filled)


def _sum(text: str, variables: _Variables) -> str:
    """The value of $((...)): whole numbers, names of variables, + - * / % and nothing else."""
    text = re.sub(r"[A-Za-z_]\w*", lambda found: " ".join(variables.get(found[0], ["$"])), text)
    if len(text) > 100 or "**" in text or not re.fullmatch(r"[\d\s+*/%()-]+", text):
        return "$SUM"
    try:
        return str(eval(text.replace("/", "//"), {"__builtins__": {}}))  # digits and signs alone
    except (SyntaxError, ZeroDivisionError, TypeError):
        return "$SUM"


def _split(word: str) -> list[str]:
    """A word of several words, as an unquoted variable is, or a command within quotes."""
    try:
        return shlex.split(word) if re.search(r"\s", word) else [word]
    except ValueError:
        return word.split()
