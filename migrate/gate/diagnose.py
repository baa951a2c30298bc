"""What went wrong, by name and in the terms of the Python file.

Three sources: the messages of triton's front end, of the adapter and of the compiler; the IR of a compiler pass
that failed; and what a kernel that compiled turned into (its cost). Names are in kebab case and stable: reports,
baselines and rules refer to them. Where a name has a page in `migrate explain`, it is the pattern's.
"""
from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from migrate.gate.compiler import BUFFERS, Step
from migrate.gate.cost import Cost, Line
from migrate.gate.result import Diagnosis, Outcome, Place
from migrate.gate.ttir import Ttir, scan_facts


@dataclass(frozen=True)
class Known:
    """A message of the tools, and what it means for the kernel's author."""

    name: str
    pattern: str
    means: str
    hint: str


# front end and host; the first match wins
FRONT_END = (
    Known("host-api", r"module 'triton' has no attribute '(\w+)'",
          "triton.{0} does not exist in triton 3.2", "remove the call, with what needed it"),
    Known("missing-symbol", r"module 'triton\.language(?:\.\w+)*' has no attribute '(\w+)'",
          "tl.{0} does not exist in this triton", "see migrate explain tl.{0}"),
    Known("unknown-launch-option", r"Keyword argument (\w+) was specified but unrecognised",
          "launch option {0} does not exist on Ascend", "remove {0} from the launch and from triton.Config"),
    Known("launch-grid", r"grid should be less than 65536", "the grid has more than 65,535 programs",
          "a one-dimensional grid of at most the physical cores, and a loop over the work"),
    Known("tf32", r"input_precision == tf32|allow_tf32", "the cube has no TF32",
          "input_precision='ieee', or 'hf32' where its accuracy will do"),
    Known("chained-boolean", r"chained boolean operators", "`a or b or c` is not lowered",
          "put parentheses round two of the operands"),
    Known("break-statement", r"unsupported AST node type: Break", "`break` is not lowered",
          "run the loop to its end and mask what comes after"),
    Known("return-in-loop", r"Cannot have `return` statements inside", "`return` inside a loop is not lowered",
          "guard the rest of the body with `if`"),
    Known("python-global", r"Cannot access global variable (\w+)", "{0} is a Python global",
          "make it a tl.constexpr, or pass it as an argument"),
    Known("tensor-index", r"unsupported tensor index", "a tile cannot be indexed like a list",
          "select with a mask and a sum, or tl.get_element"),
    Known("other-without-mask", r"`other` cannot be provided without `mask`", "`other` without a `mask`",
          "drop `other`, or add the mask"),
    Known("dot-dtypes-differ", r"Both operands must be same dtype\. Got (\w+) and (\w+)",
          "tl.dot of {0} and {1}", "cast one operand: products want one dtype"),
    Known("dot-dtype", r"Unsupported (?:lhs|rhs) dtype (\w+)|out_dtype=(\w+) is unsupported",
          "tl.dot does not take this dtype", "int8, float16, bfloat16 or float32; accumulate in float32"),
    Known("block-pointer-offset-64bit", r"Block pointers only support 32 bit",
          "a block pointer's offset or shape is int64", "put the wide part into the base pointer, keep offsets int32"),
    Known("descriptor", r"cannot cast \w+\[constexpr\[|tensor_descriptor|TensorDescriptor|tensormap",
          "tensor descriptors do not work in triton-ascend 3.2.0", "use tl.make_block_ptr"),
    Known("unsupported-dtype", r"\[fp8, fp64\] is unsupported|unexpected type fp8",
          "float64 and float8 do not exist here", "float32, or bfloat16 for float8"),
    Known("dtype-mismatch-store", r"cannot cast|Cannot bitcast", "the dtypes of a value and its target differ",
          "cast the value with .to(pointer.dtype.element_ty)"),
    Known("constexpr-method", r"'constexpr' object has no attribute '(\w+)'",
          "a specialised integer has no .{0}", "tl.cast(value, dtype) works for both"),
    Known("mask-not-boolean", r"must be 1-bit signless integer", "the mask is no boolean tile",
          "compare it: mask != 0"),
    Known("none-pointer", r"'NoneType' object has no attribute '(?:type|dtype|handle)'|cannot convert None",
          "a pointer that is None is used",
          "nest the constexpr test outside the run-time test, or pass a dummy tensor"),
    Known("unsupported-syntax", r"unsupported AST node type: (\w+)", "{0} is not lowered", "rewrite the statement"),
)

BACK_END = (
    Known("zero-stride", r"strides must not be zero", "an address does not move along one of its axes",
          "load the smaller tile and broadcast it with [:, None]"),
    Known("unsupported-dtype", r"unsupported datatype|f64", "float64 has no vector instructions", "float32"),
    Known("atomic-result-used", r"tt\.atomic_|atomic", "the old value of an atomic is used",
          "atomics whose result is dropped are one DMA; keep partial sums and add them in a second pass"),
    Known("sort-dtype", r"'hivm\.hir\.vsort' op failed to verify", "tl.sort does not take this dtype", "float32"),
    Known("scan-dtype", r"'hivm\.hir\.vcumsum' op failed to verify", "the scan does not take this dtype", "float32"),
)


# a descriptor is loaded and stored with a list of offsets
_DESCRIPTOR_LINE = re.compile(r"make_tensor_descriptor|\.(?:load|store)\(\[")


def front_end(error: Mapping[str, Any]) -> Diagnosis:
    """An exception of the import, the wrapper or triton's front end."""
    message = f"{error['message']}\n{error.get('said', '')}"
    place = Place(error["file"], error["line"]) if error.get("line") else None
    if said := re.search(r'loc\("([^"]+)":(\d+):\d+\): error: (.*)', error.get("said", "")):
        place, message = Place(said[1], int(said[2])), said[3]
    line = linecache.getline(place.file, place.line) if place else ""
    if "NoneType" in message and "libdevice." in line:
        return Diagnosis("libdevice-stub", "error", "the functions of triton's generic libdevice are empty on Ascend",
                         "tl.math, or triton.language.extra.ascend.libdevice", place)
    for known in FRONT_END:
        if found := re.search(known.pattern, message) or (known.name == "descriptor" and _DESCRIPTOR_LINE.search(line)):
            return _from(known, found, _descriptor_line(place) if known.name == "descriptor" else place)
    first = next((part.strip() for part in message.splitlines() if part.strip()), "no message")
    return Diagnosis("front-end-error", "error", f"{error['type']}: {first}".removeprefix(": ")[:300], "", place)


def _descriptor_line(place: Place | None) -> Place | None:
    """The type error shows where the tile is used; the nearest descriptor above it is to blame."""
    for line in range(place.line if place else 0, 0, -1):
        if place and _DESCRIPTOR_LINE.search(linecache.getline(place.file, line)):
            return Place(place.file, line)
    return place


def _from(known: Known, found: re.Match[str], place: Place | None) -> Diagnosis:
    groups = [g for g in found.groups() if g]
    fill = groups + [""] * 2
    return Diagnosis(known.name, "error", known.means.format(*fill), known.hint.format(*fill), place)


def compile_step(step: Step, ttir: Ttir, constants: Mapping[str, Any]) -> Diagnosis:
    """Why a run of the adapter or of the compiler failed."""
    place = message_place(step.messages)
    if step.overflow:
        return overflow(step, constants, place)
    if step.outcome is Outcome.CRASHED and "memory" in step.why:
        return Diagnosis("compiler-memory", "error", f"the compiler {step.why}",
                         "usually an unrolled loop: tl.range in place of tl.static_range, fewer inlined helpers", place)
    if step.outcome is not Outcome.OK and ttir.selected_pointer:
        return Diagnosis("pointer-select", "error", "a pointer is chosen at run time, which the adapter cannot follow",
                         "choose an integer offset, or load both and choose the value", ttir.selected_pointer)
    if step.outcome is not Outcome.OK and ttir.has_f64:
        return Diagnosis("unsupported-dtype", "error", "float64 has no vector instructions", "float32",
                         ttir.has_f64.place)
    for known in BACK_END:
        if found := re.search(known.pattern, _errors(step.messages)):
            return _from(known, found, place)
    if step.outcome in (Outcome.CRASHED, Outcome.TIMED_OUT) and ttir.carried_product:
        how = "crashes" if step.outcome is Outcome.CRASHED else f"finds no end ({step.why})"
        return Diagnosis("carried-product", "error", f"the compiler {how}: a cube product is carried round a loop into "
                         "the next one", "take the tile through global memory each round", ttir.carried_product)
    if step.outcome is Outcome.CRASHED:
        return Diagnosis("compiler-crash", "error", f"the compiler {step.why}", "reproduce, reduce, report", place)
    if step.outcome is Outcome.TIMED_OUT:
        return Diagnosis("compiler-time-out", "error", f"the compiler finds {step.why}", "", place)
    return Diagnosis("compiler-error", "error", step.why[:300], "", place)


def _errors(messages: str) -> str:
    return "\n".join(line for line in messages.splitlines() if re.search("error|ERROR|see current operation", line))


def message_place(messages: str) -> Place | None:
    """The first Python line that an error message of MLIR names."""
    for pattern in (r'^loc\("([^"]+\.py)":(\d+):\d+\): error', r"^(\S+\.py):(\d+):\d+: error",
                    r'loc\("([^"]+\.py)":(\d+):\d+\)'):
        for found in re.finditer(pattern, messages, re.MULTILINE):
            if int(found[2]):
                return Place(found[1], int(found[2]))
    return None


# -- overflow ------------------------------------------------------------------------------------------------

_ALLOC = re.compile(r"memref\.alloc\(.*?: memref<((?:\d+x)*)([a-z]+\d+)\b.*?address_space<(\w+)>.*?loc\((.*)\)\s*$",
                    re.MULTILINE)


@dataclass(frozen=True)
class Buffer:
    """A local buffer that the memory planner could not place."""

    bits: int
    shape: tuple[int, ...]
    dtype: str
    place: Place | None

    def padding(self, constants: Mapping[str, Any]) -> int:
        """How many times its data the buffer takes, because elements that lie apart are padded to 32 bytes each."""
        shape = self.shape[:-1] if len(self.shape) > 2 and self.shape[-1] == 1 else self.shape
        pads = len(shape) > 2 and shape[-1] * int(re.sub(r"\D", "", self.dtype)) == 256
        return shape[-1] if pads and shape[-1] not in constants.values() else 0

    def __str__(self) -> str:
        at = f" at line {self.place.line}" if self.place else ""
        return f"{self.bits:,} bits, {'x'.join(map(str, self.shape))} {self.dtype}{at}"


def buffers(ir: str, space: str) -> list[Buffer]:
    """The buffers of one memory in the IR that the planner gave up on, largest first."""
    found = []
    for dims, dtype, where, location in _ALLOC.findall(ir):
        if where == space:
            shape = tuple(int(n) for n in dims.split("x") if n)
            places = [Place(f, int(n)) for f, n in re.findall(r'"([^"]+\.py)":(\d+):', location)]
            mine = [p for p in places if "/triton/language/" not in p.file and p.line]
            bits = prod(shape) * int(re.sub(r"\D", "", dtype))
            found.append(Buffer(bits, shape, dtype, mine[0] if mine else None))
    return sorted(found, key=lambda b: -b.bits)


def overflow(step: Step, constants: Mapping[str, Any], fallback: Place | None) -> Diagnosis:
    assert step.overflow
    space, needed, available = step.overflow
    name = BUFFERS.get(space, space)
    ir = Path(step.failed_ir).read_text() if step.failed_ir else ""
    found = buffers(ir, space)
    place = _heaviest_line(found) or fallback
    tiles = _tiles(found, constants)
    excess = max(1, round((needed / available - 1) * 100))
    text = f"{name} overflow, {needed:,} of {available:,} bits ({excess} % too many)"
    if tiles:
        text += ", tiles " + ", ".join(f"{k}={v}" for k, v in tiles.items())
    if found:
        text += f"; largest buffers: {'; '.join(map(str, _distinct(found)[:3]))}"
    hint = {"UB": "halve one of these axes, drop temporaries, or split the kernel",
            "L1": "fewer products at a time, or smaller operands",
            "L0C": "an accumulator of at most 128 x 256 float32"}.get(name, "smaller tiles")
    padded = next((b for b in found[:3] if b.padding(constants)), None)
    if padded:
        size = "x".join(map(str, padded.shape))
        hint = (f"the last axis of {size} is padding, {padded.padding(constants)} times the "
                "data: contiguous halves in place of tl.split and tl.join, no transposed or run-time strides")
    return Diagnosis(f"{name.lower()}-overflow", "error", text, hint, place, name, needed, available, tiles,
                      padded is not None)


def _heaviest_line(found: list[Buffer]) -> Place | None:
    """Of the lines that need a buffer of the largest size, the one that needs most in all."""
    total: dict[Place, int] = {}
    for buffer in found:
        if buffer.place:
            total[buffer.place] = total.get(buffer.place, 0) + buffer.bits
    largest = [b.place for b in found if b.place and b.bits == found[0].bits]
    return max(largest or total, key=lambda place: total[place], default=None)


def _distinct(found: Iterable[Buffer]) -> list[Buffer]:
    seen: dict[str, Buffer] = {}
    for buffer in found:
        seen.setdefault(str(buffer), buffer)
    return list(seen.values())


def _tiles(found: list[Buffer], constants: Mapping[str, Any]) -> dict[str, int]:
    """The constants whose values are axes of the buffers that make up most of what is needed."""
    sizes = {n: v for n, v in constants.items() if isinstance(v, int) and not isinstance(v, bool) and v > 1}
    total, counted, axes = sum(b.bits for b in found), 0, set()
    for buffer in found:
        axes |= set(buffer.shape)
        if len(buffer.shape) == 4:   # the cube's blocked layout: columns / 16, rows / 16, 16, 16
            axes |= {buffer.shape[0] * buffer.shape[3], buffer.shape[1] * buffer.shape[2]}
        counted += buffer.bits
        if counted > 0.8 * total:
            break
    exact = {n: v for n, v in sizes.items() if v in axes}
    # a tile laid out flat, or padded, has the product of two constants as its axis
    flat = {n: v for n, v in sizes.items() for w in sizes.values() if v * w in axes}
    return exact or flat


# -- what compiled ---------------------------------------------------------------------------------------------

def compiled(step: Step, cost: Cost | None, ttir: Ttir) -> Iterator[Diagnosis]:
    """Warnings, and errors that the compiler did not see, about a kernel that reached HIVM."""
    for op in ttir.ops:
        if "inline_asm" in op.name:
            yield Diagnosis("inline-asm", "error", "inline assembly: every stage here passes it on, the device "
                            "assembler cannot read it", "tl.math or libdevice", op.place)
    if re.search(r"\[NOTE\].*set enable-auto-multi-buffer to false", step.messages):
        yield Diagnosis("multi-buffering-off", "note", "the Unified Buffer was too small for double buffering: DMA and "
                        "vector work do not overlap", "smaller tiles bring it back")
    if cost is None:
        return
    # 324 HIVMs of mamba's kernels with products had exactly as many as the TTIR
    products = ttir.named("tt.dot")
    if cost.products < len(products):
        yield Diagnosis("dropped-product", "error", f"products in the TTIR: {len(products)}, in the HIVM: "
                        f"{cost.products}: the compiler lost {len(products) - cost.products} in silence",
                        "store the accumulator after adding to it, or begin with zeros less tl.program_id(0) * 0.0",
                        next((op.place for op in products if op.place), None))
    for line in cost.lines:
        for function in line.unlinked:
            yield Diagnosis("unlinkable-call", "error", f"the HIVM calls {function}, which the compiler's own library "
                            "does not have: nothing can link it", "another form of this line: a product that is "
                            "carried into itself goes through memory (migrate explain feedback-through-memory)",
                            Place(line.file, line.line) if line.line else None)
        if line.unplanned:
            yield Diagnosis("unplanned-buffer", "warning", f"{line.unplanned} buffers of a core were given no address: "
                            "the memory planner left them out", "report it to the compiler's authors",
                            Place(line.file, line.line) if line.line else None)
    for line in cost.lines:
        yield from _slow(line, ttir)


def _slow(line: Line, ttir: Ttir) -> Iterator[Diagnosis]:
    place = Place(line.file, line.line) if line.line else None
    ops = ttir.at(place)

    def warn(name: str, message: str, hint: str) -> Diagnosis:
        return Diagnosis(name, "warning", message, hint, place)

    if line.scalar_rounds and not any("inline_asm" in op.name for op in ops):
        rounds = f"{line.scalar or line.scalar_rounds} rounds a program"
        scans = [scan_facts(op) for op in ops if op.name == "tt.scan"]
        if scans and not scans[0][2]:
            yield warn("scan-combine", f"an associative scan that is no sum runs element by element: {rounds}",
                       "a loop over a vector state, or the chunked matrix form")
        elif scans and scans[0][0] == scans[0][1] - 1:
            yield warn("last-axis-scan", f"a scan along the last axis runs element by element: {rounds}",
                       "scan another axis: tl.trans(tl.cumsum(tl.trans(x), 0)) is vector work")
        elif "element by element" in line.kinds and {"divsi", "remsi"} & set(line.scalar_ops):
            yield warn("flat-index", f"an address with // or % is computed element by element: {rounds}",
                       "two-dimensional tiles: rows[:, None] * stride + columns[None, :]")
        elif "element by element" in line.kinds:
            yield warn("indirect-access", f"global memory is read or written element by element: {rounds}",
                       "load a contiguous tile and pick from it, or make the index the outer axis")
        elif "i64" in line.scalar_types:
            yield warn("int64-lanes", f"int64 arithmetic has no vector form: {rounds}",
                       ".to(tl.int32) right after the load")
        else:
            yield warn("scalar-loop", f"runs element by element ({', '.join(line.scalar_ops) or 'copies'}): {rounds}",
                       "another axis, another dtype, or the work of this line moved to the host")
    if "row by row" in line.kinds:
        if "remsi" in line.address_ops:
            yield warn("modulo-wrap", f"`%` in a row index makes one transfer of every row: {line.transfers} a program",
                       "mask the rows instead of wrapping them")
        else:
            yield warn("row-wise-access", f"one transfer for every row: {line.transfers} a program",
                       "contiguous rows, where the algorithm allows")
    strided = [kind for kind in line.kinds if kind.startswith("strided")]
    if strided:
        moved = ", ".join(f"{bits} bytes {pipe}" for pipe, bits in line.moved.items())
        yield warn("strided-access", f"neighbours lie apart in memory, so elements move one by one ({moved})",
                   "read it as it lies, then tl.trans")
    if line.locks:
        atomics = [op for op in ops if op.name.startswith("tt.atomic")]
        if atomics and any(ttir.used(op) for op in atomics):
            yield warn("atomic-result-used", "the old value of an atomic is used: all cores queue at one lock",
                       "drop the result; keep partial sums and add them in a second pass")
        else:
            yield warn("global-lock", "all cores queue at one lock", "a dtype or an operation that is one DMA")
