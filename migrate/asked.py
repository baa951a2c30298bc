"""What a user asks of a port besides choosing rules: constants to fold in, axes to split, copies to make.

A rule that is for the asking looks here (`self.source.asked`) and does nothing where nothing was asked.
"""
from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from migrate.errors import UsageError

Literal = bool | int | float | str | None

_SETTING = re.compile(r"(?:(?P<kernel>[A-Za-z_]\w*)\.)?(?P<name>[A-Za-z_]\w*)=(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class Setting:
    """`K=128`: the value of a `tl.constexpr` parameter, in every kernel or in one."""

    name: str
    value: Literal
    kernel: str = ""

    def __str__(self) -> str:
        return f"{self.kernel + '.' if self.kernel else ''}{self.name}={self.value!r}"


@dataclass(frozen=True)
class Asked:
    """`split` names the constants whose axes are split; `copy_operands` asks for copies of products' operands."""

    settings: tuple[Setting, ...] = ()
    split: tuple[str, ...] = ()
    copy_operands: bool = False

    def __bool__(self) -> bool:
        return self != Asked()

    def __str__(self) -> str:
        """As options of `migrate port`; in the header of a port."""
        words = []
        if self.settings:
            words.append("--set " + " ".join(map(str, self.settings)))
        if self.split:
            words.append("--split " + ",".join(self.split))
        if self.copy_operands:
            words.append("--copy-operands")
        return " ".join(words)

    def values(self, kernel: str) -> dict[str, Literal]:
        """What was set for a kernel, by parameter; what names the kernel wins."""
        wide = {s.name: s.value for s in self.settings if not s.kernel}
        return wide | {s.name: s.value for s in self.settings if s.kernel == kernel}


NOTHING = Asked()


def is_setting(text: str) -> bool:
    """Whether a word of the command line is NAME=VALUE or KERNEL.NAME=VALUE."""
    return _SETTING.fullmatch(text) is not None


def settings(words: Iterable[str]) -> tuple[Setting, ...]:
    """NAME=VALUE, each with a Python literal. Raises UsageError for what is none, and for a name set twice."""
    found: dict[tuple[str, str], Setting] = {}
    for word in words:
        parts = _SETTING.fullmatch(word)
        if parts is None:
            raise UsageError(f"--set {word}: expected NAME=VALUE or KERNEL.NAME=VALUE, as in K=128 or USE_G=False")
        try:
            value = ast.literal_eval(parts["value"])
        except (ValueError, SyntaxError):
            value = ...
        if not isinstance(value, Literal) or (isinstance(value, float) and not math.isfinite(value)):
            raise UsageError(f"--set {word}: expected a finite number, True, False, None or a quoted string as the "
                             "value")
        key = (parts["kernel"] or "", parts["name"])
        if key in found and (type(found[key].value), found[key].value) != (type(value), value):
            raise UsageError(f"--set {word}: {parts['name']} is already set to {found[key].value!r}")
        found[key] = Setting(parts["name"], value, key[0])
    return tuple(found.values())


def parse(options: str) -> Asked:
    """The reverse of `str(Asked(...))`, for text without spaces in it. Raises UsageError for anything else."""
    words: dict[str, list[str]] = {}
    option = ""
    for word in options.split():
        option = word if word.startswith("--") else option
        words.setdefault(option, []).extend([] if word == option else [word])
    asked = Asked(settings(words.get("--set", ())), tuple(",".join(words.get("--split", ())).split(","))
                  if "--split" in words else (), "--copy-operands" in words)
    if str(asked) != " ".join(options.split()):
        raise UsageError(f"{options!r}: expected --set NAME=VALUE..., --split NAME,... and --copy-operands, in this "
                         "order")
    return asked
