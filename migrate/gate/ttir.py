"""Facts about a kernel's TTIR that name the cause of what the compiler did further down.

Read as text, line by line: the printed form has one operation a line and names every value once.
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from migrate.gate.result import Place

_ALIAS = re.compile(r"^#loc(\d*) = loc\((.*)\)$", re.MULTILINE)
_FILE = re.compile(r'"([^"]+)":(\d+):\d+')
_REFERENCE = re.compile(r"#loc(\d*)\b")
_OP = re.compile(r'^\s*(?:(%[\w:]+(?:, %[\w:]+)*) = )?"?([a-z_]+\.[\w.]+)"?')
_NAME = re.compile(r"%[A-Za-z0-9_]+")
_CLOSE = re.compile(r"^\s*\}\) : ")


@dataclass(frozen=True)
class Op:
    name: str            # "tt.load", "arith.muli"
    text: str            # all of it, body and types included
    results: str
    place: Place | None


class Ttir:
    def __init__(self, text: str) -> None:
        self.text = text
        self._aliases = dict(_ALIAS.findall(text))

    def _place(self, line: str) -> Place | None:
        """The user's line that an operation's location stands for."""
        at = line.rfind(" loc(")
        found = self._resolve(line[at:], 0) if at >= 0 else []
        mine = [p for p in found if "/triton/language/" not in p.file and p.line]
        return mine[0] if mine else None

    def _resolve(self, location: str, depth: int) -> list[Place]:
        places = [Place(file, int(line)) for file, line in _FILE.findall(location)]
        if not places and depth < 20:
            for reference in _REFERENCE.findall(location):
                places += self._resolve(self._aliases.get(reference, ""), depth + 1)
        return places

    @cached_property
    def ops(self) -> list[Op]:
        return list(self._read())

    def _read(self) -> Iterator[Op]:
        lines = iter(self.text.splitlines())
        for line in lines:
            found = _OP.match(line)
            if not found or line.startswith("#"):
                continue
            whole, last = line, line
            if found[2] in ("tt.scan", "tt.reduce") and line.rstrip().endswith("({"):
                for last in lines:
                    whole += "\n" + last
                    if _CLOSE.match(last):
                        break
            yield Op(found[2], whole, found[1] or "", self._place(last))

    def at(self, place: Place | None) -> list[Op]:
        return [op for op in self.ops if op.place == place]

    def named(self, name: str) -> list[Op]:
        return [op for op in self.ops if op.name == name]

    def used(self, op: Op) -> bool:
        """Whether anything reads the operation's result."""
        name = op.results.split(",")[0].split(":")[0]
        return bool(name) and len(re.findall(re.escape(name) + r"\b", self.text)) > 1

    @cached_property
    def has_f64(self) -> Op | None:
        """An operation on float64, the first that has a line."""
        found = [op for op in self.ops if op.name != "tt.func" and re.search(r"(?:<|x|[ ,(])f64\b", op.text)]
        return next((op for op in found if op.place), found[0] if found else None)

    @cached_property
    def selected_pointer(self) -> Place | None:
        """Where a pointer is chosen at run time: a select of pointers, or an `if` that yields one."""
        for op in self.ops:
            chosen = op.name == "arith.select" and "!tt.ptr" in op.text
            if chosen or (op.name == "scf.if" and re.search(r"-> \(.*!tt\.ptr", op.text)):
                return op.place or self._first_pointer_line()
        return None

    def _first_pointer_line(self) -> Place | None:
        return next((op.place for op in self.named("tt.addptr") if op.place), None)

    @cached_property
    def carried_product(self) -> Place | None:
        """A `tl.dot` whose operand is carried round a loop: on the cube, the product of the round before."""
        makers: dict[str, set[str]] = {}
        carried: set[str] = set()
        for line in self.text.splitlines():
            for group in re.findall(r"iter_args\(([^)]*)\)", line):
                carried |= {pair.split("=")[0].strip() for pair in group.split(",")}
            found = _OP.match(line)
            if found and found[1]:
                # what is loaded comes from memory, not from the round before
                inputs = set() if found[2] == "tt.load" else set(_NAME.findall(line[found.end():]))
                for result in found[1].split(","):
                    makers[result.split(":")[0].strip()] = inputs
        for op in self.named("tt.dot"):
            operands = _NAME.findall(op.text.split("tt.dot", 1)[1])[:2]
            seen, todo = set(), list(operands)
            while todo:
                name = todo.pop()
                if name in carried:
                    return op.place
                if name not in seen:
                    seen.add(name)
                    todo += makers.get(name, set())
        return None


def scan_facts(op: Op) -> tuple[int, int, bool]:
    """(axis, rank, whether it is a plain sum) of a tt.scan."""
    axis = re.search(r"axis = (\d+)", op.text)
    tensors = re.findall(r"tensor<([\dx]+)x\w+>", op.text.rsplit("}) : ", 1)[-1])
    combine = set(re.findall(r"\b(arith\.\w+|math\.\w+)\b", op.text)) - {"arith.extf", "arith.truncf"}
    plain = combine <= {"arith.addf", "arith.addi"} and op.results.count(",") == 0 and ":" not in op.results
    return int(axis[1]) if axis else 0, len(tensors[0].split("x")) if tensors else 1, plain
