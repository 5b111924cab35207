"""The errors tiledask raises: each states the rule, both numbers and a way out."""

import re

__all__ = ["CheckpointError", "ClusterLostError", "CollectiveError", "ConfigError", "DeadlineError"]
__all__ += ["DeadlockError", "DivergedError", "DoesNotFitError", "KernelError", "PartitionError"]
__all__ += ["PlacementError", "ProgramError", "RuleError", "ScheduleError", "short"]


MOST_WORDS = 600
"""Characters of a message as it is shown: one that echoes a long input loses its middle."""


class _Shown:
    """An exception's words, short and printable, whatever was given; ``args`` has them whole. No
    exception itself: the builtin one beside it makes the object, also where it is unpickled.

    >>> print(str(ConfigError("a" * 1_000 + chr(27)))[-9:])
    aaaaa\\x1b
    """

    def __str__(self) -> str:
        words = super().__str__()
        if len(words) > MOST_WORDS:
            words = f"{words[:350]} ... {words[-240:]}"
        return _UNPRINTED.sub(lambda found: ascii(found[0])[1:-1], words)


_UNPRINTED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")


class RuleError(_Shown, ValueError):
    """What can be read, and breaks a rule; the message names the rule, and where it is broken."""


class PlacementError(RuleError):
    """An operation on a sharded array that its placements do not allow."""


class PartitionError(RuleError):
    """A split of layers over devices that breaks a rule, or that cannot exist."""


class ScheduleError(RuleError):
    """An order of pipeline actions that breaks a rule; the message names the action."""


class DeadlockError(ScheduleError):
    """An order in which each of several ranks waits for the next; the message names the circle."""


class ProgramError(RuleError):
    """A program whose instructions do not fit together; the message names the two that disagree."""


class CollectiveError(_Shown, RuntimeError):
    """Ranks that did not call the same collectives; the message names both ranks and both calls."""


class ConfigError(_Shown, ValueError):
    """A model, hardware or run description that cannot be read without guessing."""


class CheckpointError(_Shown, ValueError):
    """A checkpoint that is unfinished, damaged, or does not hold what is asked of it."""


class DivergedError(_Shown, ArithmeticError):
    """A training run whose numbers are no longer finite, and nothing in its rules can help."""


class KernelError(RuleError):
    """A tile kernel that does not exist, or that this machine or these operands cannot use."""


class DoesNotFitError(_Shown, MemoryError):
    """A plan that needs more memory than is allowed, refused before anything runs."""


class DeadlineError(_Shown, TimeoutError):
    """A wait on the cluster that ran out of time; the message says what it waited for."""


class ClusterLostError(_Shown, RuntimeError):
    """The scheduler or the last worker is gone; the message says how to start again."""


def short(value: object) -> str:
    """A value for an error message: a number of many digits or a long list is cut.

    >>> short(10**60)
    '1000000000000000000000000000000000000000... (61 characters)'
    """
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # more digits, or deeper, than Python writes
        return f"one {type(value).__name__} too large to print"
    return shown if len(shown) <= 60 else f"{shown[:40]}... ({len(shown)} characters)"
