"""What an operator's arguments must be, as data, and the one check of it. Contracts of generated ports have one:

    Signature({"q": Tensor("B T G K"), "k": Tensor("B T G K", "q"), "v": Tensor("B T H%G V"),
               "chunk_size": Integer("C"), "cu_seqlens": Packed(optional=True), "sums": Tensor("B H N", F32)})

Arguments are checked in the order in which they are declared, which need not be that of the function. An axis is

    T              a size: the first argument that has it says how large it is, later ones must agree
    H%G            the same, and a multiple of G, whichever is said first
    N*K, S+1, T/C  follows from sizes known by then; from left to right, a quotient is rounded up
    *R             any number of axes

and `|` stands between layouts; arguments with several take the one that the first of them took. What cannot be said
so is a function: `also`. Values of tensors are not looked at: that would stop the device.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ported_kernels import arguments
from ported_kernels.arguments import FLOATS, reject

F32 = (torch.float32,)
INTEGERS = (torch.int32, torch.int64)

Given = Mapping[str, Any]
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Tensor:
    """Not empty. `dtypes`: those it may have, or the argument whose dtype it has. `memory`: what the function asks of
    its strides, "rows" (the last is 1) or "contiguous"."""

    dims: str
    dtypes: tuple[torch.dtype, ...] | str = FLOATS
    optional: bool = False
    memory: str = ""


@dataclass(frozen=True)
class Packed:
    """Where packed sequences end, [S+1], from 0. Says S; and `slots`, the number of their chunks, if there is a C: each
    sequence has a slot more than its whole chunks. Without it S is B, and the number follows from T. `row`: B must be
    1."""

    optional: bool = False
    row: bool = True
    slots: str = "N"


@dataclass(frozen=True)
class Integer:
    """At least 1. `divides`: a size that must be a multiple of it; None stands for that size."""

    size: str = ""
    optional: bool = False
    power_of_two: bool = False
    divides: str = ""


@dataclass(frozen=True)
class Value:
    fits: Callable[[Any], bool]
    expected: str


@dataclass(frozen=True)
class Several:
    """A tuple of tensors."""

    parts: tuple[Tensor, ...]
    optional: bool = False


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


FLAG = Value(lambda value: isinstance(value, bool), "True or False")
FLAG_OR_NONE = Value(lambda value: value is None or isinstance(value, bool), "True, False or None")
NUMBER = Value(_number, "a number")
LIMITS = Value(lambda value: isinstance(value, (tuple, list)) and len(value) == 2 and all(map(_number, value))
               and value[0] <= value[1], "two numbers, the smaller first")
DTYPE = Value(lambda value: value is None or value in FLOATS, "float32, bfloat16, float16 or None")

Declaration = Tensor | Packed | Integer | Value | Several


@dataclass(frozen=True)
class Signature:
    arguments: Mapping[str, Declaration]
    also: Callable[[Sizes, Given], None] = field(default=lambda sizes, given: None)     # raises `reject(...)`

    def check(self, given: Given) -> torch.device:
        """The device of the tensors. Raises ValueError for the first argument that does not fit: its name, what was
        expected, what came. Where two arguments contradict each other it names the later one, and the earlier one
        as the reason. Nothing is changed and nothing is launched."""
        check = _Check(given)
        for name, declared in self.arguments.items():
            check.one(name, given[name], declared)
        self.also(check.sizes, given)
        assert check.device is not None, "every operator has a tensor that must be given"
        return check.device


class _Check:
    def __init__(self, given: Given) -> None:
        self.given = given
        self.sizes: dict[str, int] = {}
        self.said: dict[str, str] = {}              # which argument said a size
        self.multiples: list[tuple[str, str]] = []
        self.layout: int | None = None
        self.device: torch.device | None = None
        self.first = ""                             # the argument that has that device

    def one(self, name: str, value: Any, declared: Declaration) -> None:
        if isinstance(declared, Value):
            if not declared.fits(value):
                raise reject(name, declared.expected, _shown(value))
        elif isinstance(declared, Integer):
            self.integer(name, value, declared)
        elif isinstance(declared, Packed):
            self.packed(name, value, declared)
        elif value is None and declared.optional:
            return
        elif isinstance(declared, Tensor):
            self.tensor(name, value, declared)
        else:
            if not isinstance(value, (tuple, list)) or len(value) != len(declared.parts):
                raise reject(name, f"a tuple of {len(declared.parts)} tensors", _shown(value))
            for i, (part, tensor) in enumerate(zip(declared.parts, value, strict=True)):
                self.tensor(f"{name}[{i}]", tensor, part)

    def integer(self, name: str, value: Any, declared: Integer) -> None:
        if value is None and declared.optional:
            if declared.divides:
                self.say(declared.size, self.sizes[declared.divides], name)
            return
        if not isinstance(value, int) or isinstance(value, bool):
            raise reject(name, "an integer", _shown(value))
        if value < 1:
            raise reject(name, "an integer from 1 on", value)
        if declared.power_of_two and value & (value - 1):
            raise reject(name, "a power of two", value)
        if declared.divides and self.sizes[declared.divides] % value:
            size = declared.divides
            raise reject(name, f"a divisor of {size} = {self.sizes[size]}, of {self.said[size]}", value)
        if declared.size:
            self.say(declared.size, value, name)

    def packed(self, name: str, value: Any, declared: Packed) -> None:
        known = self.sizes
        if value is None and declared.optional:
            if "B" in known:
                self.say("S", known["B"], self.said["B"])
            if "C" in known and declared.slots:
                self.say(declared.slots, -(-known["T"] // known["C"]), self.said["T"])
            return
        arguments.tensor(name, value, "S+1", INTEGERS)
        self.same_device(name, value)
        if value.numel() < 2:
            raise reject(name, "two places or more [S+1]: where sequences begin and end", f"shape {tuple(value.shape)}")
        if declared.row and known.get("B", 1) != 1:
            raise reject(self.said["B"], f"B = 1, as {name} is given", f"B = {known['B']}")
        self.say("S", value.numel() - 1, name)
        if "C" in known and declared.slots:
            self.say(declared.slots, known["S"] + known["T"] // known["C"], name)

    def tensor(self, name: str, value: Any, declared: Tensor) -> None:
        layouts = [self.spread(dims, value) for dims in declared.dims.split("|")]
        if len(layouts) > 1 and self.layout is not None:
            layouts = [layouts[self.layout]]
        dtypes: tuple[torch.dtype, ...] = FLOATS if isinstance(declared.dtypes, str) else declared.dtypes
        arguments.tensor(name, value, "|".join(map(" ".join, layouts)), dtypes)
        if isinstance(declared.dtypes, str):
            model = self.given[declared.dtypes]
            if model is not None and value.dtype != model.dtype:
                raise reject(name, f"the dtype of {declared.dtypes}, {arguments.short(model.dtype)}",
                             arguments.short(value.dtype))
        self.same_device(name, value)
        which = [len(axes) for axes in layouts].index(value.dim())
        if len(layouts) > 1:
            self.layout = which
        self.shape(name, tuple(value.shape), layouts[which])
        if declared.memory == "rows" and value.stride(-1) != 1:
            raise reject(name, "a last stride of 1", f"strides {value.stride()}")
        if declared.memory == "contiguous" and not value.is_contiguous():
            raise reject(name, "a contiguous tensor", f"strides {value.stride()}")

    def spread(self, dims: str, value: Any) -> list[str]:
        """The axes, with those that a `*R` stands for."""
        axes = dims.split()
        star = next((axis for axis in axes if axis.startswith("*")), None)
        if star is None:
            return axes
        count = max(value.dim() - len(axes) + 1, 0) if isinstance(value, torch.Tensor) else 1
        count = self.sizes.setdefault(star, count)
        at = axes.index(star)
        return [*axes[:at], *(f"{star[1:]}{i}" for i in range(count)), *axes[at + 1:]]

    def shape(self, name: str, shape: tuple[int, ...], axes: list[str]) -> None:
        for axis, size in zip(axes, shape, strict=True):
            if re.fullmatch(r"\w+(%\w+)?", axis):
                self.say(axis.partition("%")[0], size, name)
        want = tuple(self.value(axis.partition("%")[0]) for axis in axes)
        if shape != want:
            others = {part for axis, had, wanted in zip(axes, shape, want, strict=True) if had != wanted
                      for part in re.findall(r"[A-Za-z_]\w*", axis.partition("%")[0]) if self.said[part] != name}
            why = "".join(f", {part} of {self.said[part]}" for part in sorted(others))
            raise reject(name, f"shape [{', '.join(axes)}] = {want}{why}", shape)
        self.multiples += [(axis.partition("%")[0], axis.partition("%")[2]) for axis in axes if "%" in axis]
        for large, small in self.multiples:
            if small in self.sizes and self.sizes[large] % self.sizes[small]:
                (one, reason), what = ((large, small), "a multiple") if self.said[large] == name else \
                    ((small, large), "a divisor")
                raise reject(name, f"{one} {what} of {reason} = {self.sizes[reason]}, of {self.said[reason]}",
                             f"{one} = {self.sizes[one]}")

    def say(self, size: str, value: int, name: str) -> None:
        if size not in self.sizes:
            self.sizes[size], self.said[size] = value, name

    def value(self, axis: str) -> int:
        first, *rest = re.split(r"([*+/])", axis)
        found = self.term(first)
        for operation, term in zip(rest[::2], rest[1::2], strict=True):
            other = self.term(term)
            found = {"*": found * other, "+": found + other, "/": -(-found // other)}[operation]
        return found

    def term(self, text: str) -> int:
        return int(text) if text.isdigit() else self.sizes[text]

    def same_device(self, name: str, value: torch.Tensor) -> None:
        if self.device is None:
            self.device, self.first = value.device, name
        elif value.device != self.device:
            raise reject(name, f"the device of {self.first}, {self.device}", value.device)


def _shown(value: Any) -> str:
    """A value, or the type of one that is long to print."""
    return repr(value) if isinstance(value, (int, float, str, bool, torch.dtype)) else type(value).__name__


def power_of_two(value: int) -> bool:
    return value & (value - 1) == 0
