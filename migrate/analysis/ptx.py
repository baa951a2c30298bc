"""Straight-line float32 PTX as an expression. Anything else is refused by name, never guessed."""
from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

import libcst as cst

from migrate.edit import is_atom

# `{0}` is an operand, `tl` stands for triton.language, `_tanh` for a function the file has to hold
UNARY = {"mov": "{0}", "neg": "-{0}", "abs": "tl.abs({0})", "rcp": "1.0 / {0}", "cos": "tl.cos({0})",
         "sin": "tl.sin({0})", "ex2": "tl.exp2({0})", "lg2": "tl.log2({0})", "sqrt": "tl.sqrt({0})",
         "rsqrt": "tl.rsqrt({0})", "tanh": "_tanh({0})"}
BINARY = {"add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}",
          "min": "tl.minimum({0}, {1})", "max": "tl.maximum({0}, {1})"}
FORMS = {**UNARY, **BINARY, "fma": "tl.fma({0}, {1}, {2})"}
MODIFIERS = frozenset({"approx", "ftz", "full", "rn"})     # rounding other than to nearest, and .sat, mean something
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
INSTRUCTION = re.compile(r"(?P<op>\w+)(?P<mods>(?:\.\w+)*)\.(?P<type>\w+)\s+(?P<operands>.+)", re.DOTALL)
REGISTERS = re.compile(r"\.reg\s+\.(?:f32|b32)\s+(.+)", re.DOTALL)


class Refused(Exception):
    """Why the text cannot be written as an expression."""


@dataclass
class _Register:
    text: str
    reads: int = field(default=0)


def expression(asm: str, inputs: list[str], language: str = "tl") -> str:
    """The value of `$0` in terms of the inputs `$1`, `$2`... Raises Refused."""
    registers = {f"${i}": _Register(text) for i, text in enumerate(inputs, 1)}
    for line in COMMENT.sub(" ", asm).replace("{", ";").replace("}", ";").split(";"):
        line = line.strip()
        if line and not REGISTERS.fullmatch(line):
            _step(line, registers, language)
    if "$0" not in registers:
        raise Refused("nothing is written to `$0`")
    return registers["$0"].text


def _step(line: str, registers: dict[str, _Register], language: str) -> None:
    found = INSTRUCTION.fullmatch(line)
    if found is None:
        raise Refused(f"`{line}` is not understood")
    name = line.split()[0]
    form = FORMS.get(found["op"])
    plain = found["type"] == "f32" or (found["op"] == "mov" and found["type"] == "b32")
    if form is None or not plain or not set(filter(None, found["mods"].split("."))) <= MODIFIERS:
        raise Refused(f"`{name}` has no counterpart in triton.language")
    target, *operands = [o.strip() for o in found["operands"].split(",")]
    if len(operands) != len(set(re.findall(r"\{\d\}", form))):
        raise Refused(f"`{line}` has another number of operands than `{name}` takes")
    texts = [_operand(o, registers, bare=f"({{{i}}}" in form or form == "{0}" or f", {{{i}}}" in form)
             for i, o in enumerate(operands)]
    registers[target] = _Register(form.replace("tl.", language + ".").format(*texts))


def _operand(text: str, registers: dict[str, _Register], *, bare: bool) -> str:
    if text in registers:
        register = registers[text]
        register.reads += 1
        atom = is_atom(cst.parse_expression(register.text))
        if register.reads > 1 and not register.text.isidentifier():
            raise Refused(f"`{text}` is read twice: name it in a statement of its own")
        return register.text if atom or bare else f"({register.text})"
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", text):
        return repr(struct.unpack(">f", bytes.fromhex(text[2:]))[0])
    try:
        return repr(float(text))
    except ValueError:
        raise Refused(f"operand `{text}` is not understood") from None
