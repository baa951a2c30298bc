"""The final HIVM of a kernel -> Python source, one generator function for each core that works on it.

A function is written in two levels. `make(core)` runs once for a core: it holds what depends on nothing else, above
all the buffers at their planned addresses. The generator that it returns runs once for a program; it yields where the
core waits for another one. Equal operations are done once: the compiler repeats index arithmetic a great deal.

    def make(core):
        v29 = at_address(core.memory("ub"), 133760, (1, 64,), "f32")
        def run(a0, a1, ...):
            ...
            call(s7, (v29, 0.0,))

Every operation that can go wrong carries its site (`s7`): its name and the Python line it came from. An operation that
is not known stops the program when it is reached, and not before.
"""
from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from migrate.gate import hivm
from migrate.vnpu import scalars, views
from migrate.vnpu.views import row_major

VERSION = 4   # of what is generated: raise it when the source for the same HIVM changes
_RUNTIME = -9223372036854775808   # in static_sizes, _offsets and _strides: the next operand
_SIGNED = re.compile(r"i(\d+)$")

_INTEGER = {"addi": "{0} + {1}", "subi": "{0} - {1}", "muli": "{0} * {1}", "shli": "({0} << {1})"}
_BITWISE = {"andi": "{0} & {1}", "ori": "{0} | {1}", "xori": "{0} ^ {1}"}
_AS_IT_IS = {"divsi": "divide({0}, {1})", "remsi": "remainder({0}, {1})", "floordivsi": "floor_divide({0}, {1})",
             "ceildivsi": "ceil_divide({0}, {1})", "minsi": "min({0}, {1})", "maxsi": "max({0}, {1})",
             "shrsi": "{0} >> {1}", "select": "{1} if {0} else {2}"}
_UNSIGNED = {"divui": "floor_divide({0}, {1})", "remui": "{0} - {1} * floor_divide({0}, {1})", "minui": "min({0}, {1})",
             "maxui": "max({0}, {1})", "shrui": "{0} >> {1}", "ceildivui": "ceil_divide({0}, {1})"}
_FLOAT = {"addf": "{0} + {1}", "subf": "{0} - {1}", "mulf": "{0} * {1}", "divf": "quotient({0}, {1})",
          "remf": "float_remainder({0}, {1})", "maximumf": "maximum({0}, {1})", "minimumf": "minimum({0}, {1})",
          "maxnumf": "maximum_number({0}, {1})", "minnumf": "minimum_number({0}, {1})", "negf": "-{0}"}
_COMPARE = ("{0} == {1}", "{0} != {1}", *["{0} < {1}", "{0} <= {1}", "{0} > {1}", "{0} >= {1}"] * 2)
# arith.cmpf: the ordered predicates are false beside a NaN, the others true
_COMPARE_FLOAT = (
    "False", "{0} == {1}", "{0} > {1}", "{0} >= {1}", "{0} < {1}", "{0} <= {1}", "{0} < {1} or {0} > {1}",
    "{0} == {0} and {1} == {1}", "not ({0} < {1} or {0} > {1})", "not {0} <= {1}", "not {0} < {1}", "not {0} >= {1}",
    "not {0} > {1}", "{0} != {1}", "{0} != {0} or {1} != {1}", "True")
_NOTHING_TO_DO = {"hivm.hir.set_ffts_base_addr", "hivm.hir.set_mask_norm", "annotation.mark", "memref.dealloc",
                  "scf.yield", "scf.condition"}
_PURE_VIEWS = {"memref.cast", "memref.memory_space_cast", "memref.reinterpret_cast", "memref.subview",
               "memref.collapse_shape", "memref.expand_shape", "memref.view", "memref.dim",
               "memref.extract_strided_metadata", "hivm.hir.bitcast"}


@dataclass(frozen=True)
class Site:
    """One operation of the HIVM: what it is called, and the line of Python it came from ("" where none is known)."""

    name: str
    place: str


@dataclass
class Function:
    """What one kind of core runs. `parameters` are the element type of a tensor ("*f32"), the type of a number
    ("i32"), or what the compiler added: "ffts_base_address", "sync_block_lock", "workspace"."""

    name: str
    core: str                      # "AIC" (cube) or "AIV" (vector)
    mixed: bool                    # one of the two halves of a mix kernel
    parameters: list[str]
    source: str
    sites: list[Site]


@dataclass
class Program:
    """A compiled kernel, ready to run."""

    kernel: str
    functions: list[Function]
    memories: dict[str, int]       # bytes of "ub", "cbuf", "cc" of one core
    workspace: str                 # source of a function of no arguments: bytes of workspace a program needs
    unknown: list[str] = field(default_factory=list)   # operations that would stop it, where they are reached

    def as_dict(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "memories": self.memories, "workspace": self.workspace, "unknown": self.unknown,
                "functions": [{**vars(f), "sites": [[s.name, s.place] for s in f.sites]} for f in self.functions]}

    @staticmethod
    def from_dict(stored: dict[str, Any]) -> Program:
        functions = [Function(**{**f, "sites": [Site(*site) for site in f["sites"]]}) for f in stored["functions"]]
        return Program(stored["kernel"], functions, stored["memories"], stored["workspace"], stored["unknown"])


def translate(module: Any) -> Program:
    """The program of a parsed HIVM module (`migrate.gate.hivm.parse`)."""
    functions, unknown = [], []
    workspace = "def workspace():\n    return 0\n"
    for op in module.ops:
        if op.name != "func.func" or not op.body.blocks:
            continue
        found = hivm.attributes(op)
        if "hacc.entry" in found:
            writer = _Writer()
            functions.append(writer.device_function(op, found))
            unknown += writer.unknown
        elif str(found["sym_name"]).strip('"').endswith("infer_workspace_shape_function"):
            workspace = _Writer().host_function(op)
    sizes = dict(re.findall(r'"(UB_SIZE|L1_SIZE|L0C_SIZE)", (\d+) : i32', str(module.attributes)))
    bits = {"ub": sizes["UB_SIZE"], "cbuf": sizes["L1_SIZE"], "cc": sizes["L0C_SIZE"]}
    kernel = re.sub(r"_mix_ai[cv]$", "", functions[0].name) if functions else ""
    return Program(kernel, functions, {name: int(n) // 8 for name, n in bits.items()}, workspace,
                   sorted(set(unknown)))


def make(function: Function) -> Callable[[Any], Callable[..., Any]]:
    """`make(core)` of a function, compiled."""
    names: dict[str, Any] = {**vars(scalars), **vars(views)}
    names |= {f"s{k}": site for k, site in enumerate(function.sites)}
    exec(compile(function.source, f"<{function.name} on {function.core}>", "exec"), names)
    return names["make"]


def workspace(program: Program) -> int:
    """Bytes of workspace that one program of a launch needs."""
    names: dict[str, Any] = dict(vars(scalars))
    exec(compile(program.workspace, "<workspace>", "exec"), names)
    return int(names["workspace"]())


class _Writer:
    """Writes one function."""

    def __init__(self) -> None:
        self._made: list[str] = []             # lines of make()
        self._lines: list[str] = []            # lines of run()
        self._depth = 2
        self._expressions: dict[Any, str] = {}   # SSA value -> Python expression: a name or a literal
        self._static: set[str] = set()         # the expressions that make() knows
        self._done: list[dict[Any, str]] = [{}]  # operations already done, by scope; the first scope is make()
        self._count = self._buffers = 0
        self._sites: dict[Site, int] = {}
        self.unknown: list[str] = []

    # -- whole functions -------------------------------------------------------------------------------------

    def device_function(self, op: Any, found: dict[str, Any]) -> Function:
        core = re.search(r"func_core_type<(\w+)>", str(found.get("hivm.func_core_type", "")))
        block = op.body.blocks[0]
        kinds = [re.search(r"arg_type<(\w+)>", str(a)) for a in getattr(op, "arg_attrs", None) or []]
        parameters = []
        for k, argument in enumerate(block.args):
            kind = kinds[k] if k < len(kinds) else None
            is_buffer = argument.type.name == "memref"
            parameters.append(kind[1] if kind else f"*{argument.type.element_type}" if is_buffer
                              else str(argument.type))
            self._expressions[argument] = f"a{k}"
        self._done.append({})
        self._block(block)
        arguments = ", ".join(f"a{k}" for k in range(len(parameters)))
        source = "\n".join([
            "def make(core):", "    call, load, store = core.call, core.load, core.store",
            "    set_flag, wait_flag, barrier = core.set_flag, core.wait_flag, core.barrier", *self._made,
            f"    def run({arguments}):", "        if False:", "            yield", *self._lines, "    return run", ""])
        return Function(str(found["sym_name"]).strip('"'), core[1] if core else "AIV", "hivm.part_of_mix" in found,
                        parameters, source, list(self._sites))

    def host_function(self, op: Any) -> str:
        self._done.append({})
        self._depth = 1
        for inner in op.body.blocks[0].ops:
            if inner.name == "func.return":
                self._line(f"return {self._expression(inner.operands[0])}")
            else:
                self._operation(inner)
        return "\n".join(["def workspace():", *self._made, *self._lines, ""])

    # -- small things ----------------------------------------------------------------------------------------

    def _line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def _expression(self, value: Any) -> str:
        return self._expressions[value]

    def _name(self, value: Any) -> str:
        """A fresh variable for a value."""
        name = self._expressions[value] = f"v{self._count}"
        self._count += 1
        return name

    def _site(self, op: Any, name: str = "") -> str:
        place = hivm.place_of(op)
        site = Site(name or hivm.name_of(op), str(place) if place else "")
        return f"s{self._sites.setdefault(site, len(self._sites))}"

    def _let(self, results: Sequence[Any], text: str, inputs: Iterable[str], hoist: bool) -> None:
        """Results of an operation without effects: what was done before is not done again, and what rests on
        nothing but constants is done in make(), if `hoist`."""
        if re.fullmatch(r"[av]?\d+|\(-\d+\)", text):     # nothing happens: another name for the same
            self._expressions[results[0]] = text
            return
        static = hoist and all(self._is_static(x) for x in inputs)
        for scope in self._done[:1] if static else self._done:
            if text in scope:
                known = scope[text].split(", ")
                for result, name in zip(results, known, strict=True):
                    self._expressions[result] = name
                return
        names = [self._name(result) for result in results]
        line = f"{', '.join(names)} = {text}"
        if static:
            self._made.append("    " + line)
            self._static.update(names)
        else:
            self._line(line)
        self._done[0 if static else -1][text] = ", ".join(names)

    def _is_static(self, expression: str) -> bool:
        return expression in self._static or not re.match(r"[av]\d+$", expression)

    def _stop(self, op: Any, name: str = "") -> None:
        name = name or hivm.name_of(op)
        self.unknown.append(name)
        self._line(f"core.unknown({self._site(op, name)})")
        for result in op.results:      # so that what follows can still be written
            self._line(f"{self._name(result)} = None")

    # -- operations ------------------------------------------------------------------------------------------

    def _block(self, block: Any) -> None:
        for op in block.ops:
            self._operation(op)

    def _operation(self, op: Any) -> None:
        name = hivm.name_of(op)
        dialect, _, short = name.partition(".")
        if name in _NOTHING_TO_DO:
            return
        if dialect in ("arith", "math"):
            self._arithmetic(op, short, dialect == "math")
        elif name in _PURE_VIEWS:
            self._view(op, short)
        else:
            write = getattr(self, "_" + re.sub(r"\W", "_", name), None)
            if write is None:
                self._stop(op)
            else:
                write(op)

    def _arithmetic(self, op: Any, short: str, math: bool) -> None:
        found = hivm.attributes(op)
        type_ = str(op.results[0].type)
        if short == "constant":
            self._expressions[op.results[0]] = _literal(found["value"], type_)
            return
        inputs = [self._expression(value) for value in op.operands]
        text = _arithmetic(short, math, inputs, str(op.operands[0].type), type_, found)
        if text is None:
            self._stop(op)
            return
        # a division may fail; it stays where it is
        self._let(op.results, text, inputs, hoist="divide(" not in text and "remainder(" not in text)

    def _view(self, op: Any, short: str) -> None:
        inputs = [self._expression(value) for value in op.operands]
        if short in ("cast", "memory_space_cast"):
            self._expressions[op.results[0]] = inputs[0]
            return
        found, source = hivm.attributes(op), inputs[0]
        if short in ("subview", "reinterpret_cast"):
            offsets, sizes, steps = self._mixed(found, inputs)
            if short == "reinterpret_cast":
                text = f"reinterpret({source}, {offsets[0]}, {_tuple(sizes)}, {_tuple(steps)})"
            else:
                text = _subview(op, found, source, offsets, sizes, steps)
        elif short in ("collapse_shape", "expand_shape"):
            groups = tuple(tuple(int(k.value.data) for k in group.data) for group in found["reassociation"].data)
            if short == "collapse_shape":
                text = f"collapse({source}, {groups})"
            else:
                sizes = _filled(_integers(found["static_output_shape"]), iter(inputs[1:]))
                text = f"expand({source}, {groups}, {_tuple(sizes)})"
        elif short == "view":
            sizes = _filled(_shape(op.results[0].type), iter(inputs[2:]))
            text = f'bytes_as({source}, {inputs[1]}, {_tuple(sizes)}, "{op.results[0].type.element_type}")'
        elif short == "hir.bitcast":
            text = f'{source}.typed("{op.results[0].type.element_type}")'
        elif short == "dim":
            text = f"{source}.sizes[{inputs[1]}]"
        else:
            text = f"metadata({source})"
        self._let(op.results, text, inputs, hoist=True)

    def _mixed(self, found: dict[str, Any], inputs: list[str]) -> list[list[str]]:
        """Offsets, sizes and strides: each a number in the text or an operand."""
        counts = _integers(found["operandSegmentSizes"])
        at, parts = counts[0], []
        for count, key in zip(counts[1:], ("static_offsets", "static_sizes", "static_strides"), strict=True):
            parts.append(_filled(_integers(found[key]), iter(inputs[at:at + count])))
            at += count
        return parts

    def _memref_load(self, op: Any) -> None:
        source, *index = (self._expression(value) for value in op.operands)
        self._line(f"{self._name(op.results[0])} = load({self._site(op)}, {source}, {_tuple(index)})")

    def _memref_store(self, op: Any) -> None:
        value, target, *index = (self._expression(value) for value in op.operands)
        self._line(f"store({self._site(op)}, {value}, {target}, {_tuple(index)})")

    def _memref_alloc(self, op: Any) -> None:
        type_ = op.results[0].type
        sizes = _filled(_shape(type_), (self._expression(value) for value in op.operands))
        self._line(f'{self._name(op.results[0])} = core.unplanned({self._site(op)}, "{hivm.space(type_)}", '
                   f'{_tuple(sizes)}, "{type_.element_type}")')

    def _func_call(self, op: Any) -> None:
        name = hivm.callee(op)
        if op.results:
            self._stop(op, f"a call with results: {name}")
            return
        arguments = _tuple([self._expression(value) for value in op.operands])
        self._line(f"call({self._site(op, name)}, {arguments})")

    def _func_return(self, op: Any) -> None:
        self._line("return")

    # -- control flow ----------------------------------------------------------------------------------------

    def _nested(self, block: Any) -> None:
        self._depth += 1
        self._done.append({})
        self._line("pass")
        self._block(block)
        self._done.pop()

    def _assign(self, values: Sequence[Any], expressions: Sequence[str]) -> None:
        """Assign to names already given to `values`, all at once: they may stand on the right as well."""
        if values:
            names = ", ".join(self._expression(value) for value in values)
            self._line(f"{names} = {', '.join(expressions)}")

    def _given(self, block: Any) -> list[str]:
        """What a block hands over at its end."""
        return [self._expression(value) for value in block.last_op.operands]

    def _scf_for(self, op: Any) -> None:
        block = op.regions[0].blocks[0]
        low, high, step, *start = (self._expression(value) for value in op.operands)
        index, *carried = block.args
        for value in (index, *carried):
            self._name(value)
        self._assign(carried, start)
        self._line(f"for {self._expression(index)} in range({low}, {high}, {step}):")
        self._nested(block)
        self._assign(carried, self._given(block))
        self._depth -= 1
        for result, value in zip(op.results, carried, strict=True):
            self._line(f"{self._name(result)} = {self._expression(value)}")

    def _scf_if(self, op: Any) -> None:
        for result in op.results:
            self._name(result)
        condition = self._expression(op.operands[0])
        for region, head in zip(op.regions, (f"if {condition}:", "else:"), strict=True):
            if region.blocks:
                self._line(head)
                self._nested(region.blocks[0])
                self._assign(op.results, self._given(region.blocks[0]))
                self._depth -= 1

    def _scf_while(self, op: Any) -> None:
        before, after = (region.blocks[0] for region in op.regions)
        for value in (*before.args, *after.args, *op.results):
            self._name(value)
        self._assign(before.args, [self._expression(value) for value in op.operands])
        self._line("while True:")
        self._nested(before)
        condition, *handed = self._given(before)
        self._line(f"if not {condition}:")
        self._depth += 1
        self._assign(op.results, handed)
        self._line("break")
        self._depth -= 1
        self._assign(after.args, handed)
        self._done.append({})
        self._block(after)
        self._done.pop()
        self._assign(before.args, self._given(after))
        self._depth -= 1

    # -- HIVM ------------------------------------------------------------------------------------------------

    def _hivm_hir_pointer_cast(self, op: Any) -> None:
        inputs, type_ = [self._expression(value) for value in op.operands], op.results[0].type
        addresses, _ = _integers(hivm.attributes(op)["operandSegmentSizes"])
        if addresses != 1:
            self._stop(op, "hivm.hir.pointer_cast with several addresses")
            return
        sizes = _filled(_shape(type_), iter(inputs[1:]))
        self._buffers += 1
        self._let(op.results, f'at_address(core.memory("{hivm.space(type_)}"), {inputs[0]}, {_tuple(sizes)}, '
                              f'"{type_.element_type}", {self._buffers})', inputs, hoist=True)

    def _flag(self, op: Any, verb: str) -> None:
        found = hivm.attributes(op)
        if "static_event_id" in found:
            event = _word(found["static_event_id"]).removeprefix("EVENT_ID")
        else:
            event = self._expression(op.operands[0])
        self._line(f'{verb}({self._site(op)}, "{_pipe(found["set_pipe"])}", "{_pipe(found["wait_pipe"])}", {event})')

    def _hivm_hir_set_flag(self, op: Any) -> None:
        self._flag(op, "set_flag")

    def _hivm_hir_wait_flag(self, op: Any) -> None:
        self._flag(op, "wait_flag")

    def _hivm_hir_pipe_barrier(self, op: Any) -> None:
        self._line(f'barrier("{_pipe(hivm.attributes(op)["pipe"])}")')

    def _handshake(self, op: Any) -> str:
        """The flag of a handshake between the cube core and its vector cores; "" where it is of another kind."""
        found = hivm.attributes(op)
        mode = found.get("tsync_instr_mode")
        if mode is not None and _word(mode) != "INTRA_BLOCK_SYNCHRONIZATION":
            self._stop(op, f"{hivm.name_of(op)} in mode {_word(mode)}")
            return ""
        if "static_flag_id" in found:
            return str(found["static_flag_id"].value.data)
        return self._expression(op.operands[0])

    def _hivm_hir_sync_block_set(self, op: Any) -> None:
        if flag := self._handshake(op):
            self._line(f'core.signal({self._site(op)}, {flag}, "{_pipe(hivm.attributes(op)["tpipe"])}")')

    def _hivm_hir_sync_block_wait(self, op: Any) -> None:
        if flag := self._handshake(op):
            site = self._site(op)
            self._line(f'while core.must_wait({site}, {flag}, "{_pipe(hivm.attributes(op)["pipe"])}"):')
            self._line(f"    yield {site}, {flag}")

    def _hivm_hir_sync_block_lock(self, op: Any) -> None:
        self._line("core.locked = True")

    def _hivm_hir_sync_block_unlock(self, op: Any) -> None:
        self._line("core.locked = False")

    def _hivm_hir_get_block_idx(self, op: Any) -> None:
        self._let(op.results, "core.program", ["a0"], hoist=False)

    def _hivm_hir_get_block_num(self, op: Any) -> None:
        self._let(op.results, "core.programs", ["a0"], hoist=False)

    def _hivm_hir_get_sub_block_idx(self, op: Any) -> None:
        self._let(op.results, "core.half", [], hoist=True)

    def _hivm_hir_get_sub_block_num(self, op: Any) -> None:
        self._expressions[op.results[0]] = "2"


def _arithmetic(short: str, math: bool, inputs: list[str], from_: str, to: str, found: dict[str, Any]) -> str | None:
    """The Python expression of an operation of `arith` or `math`; None where it is not known."""
    if math and short in scalars.FUNCTIONS:
        return f'function("{short}", "{to}", {inputs[0]})'
    if math:
        return f"abs({inputs[0]})" if short == "absi" else None
    if short in _INTEGER:
        return _wrapped(to, _INTEGER[short].format(*inputs))
    if short in _BITWISE:
        return _BITWISE[short].format(*inputs)
    if short in _AS_IT_IS:
        return _AS_IT_IS[short].format(*inputs)
    if short in _UNSIGNED:
        return _wrapped(to, "(" + _UNSIGNED[short].format(*(_unsigned(from_, x) for x in inputs)) + ")")
    if short in _FLOAT:
        return _rounded(to, _FLOAT[short].format(*inputs))
    if short == "cmpi":
        predicate = int(found["predicate"].value.data)
        return _COMPARE[predicate].format(*(_unsigned(from_, x) if predicate >= 6 else x for x in inputs))
    if short == "cmpf":
        return _COMPARE_FLOAT[int(found["predicate"].value.data)].format(*inputs)
    x = inputs[0]
    if short in ("index_cast", "extsi", "trunci"):
        if from_ == "i1":
            return f"-int({x})"
        return x if short == "extsi" or to == "index" else _wrapped(to, x)
    if short in ("extui", "index_castui"):
        return _wrapped(to, _unsigned(from_, x)) if short == "index_castui" else _unsigned(from_, x)
    if short in ("sitofp", "uitofp"):
        signed = f"-int({x})" if from_ == "i1" else x
        return _rounded(to, f"float({signed if short == 'sitofp' else _unsigned(from_, x)})")
    if short in ("fptosi", "fptoui"):
        return f'to_integer("{to}", {x})'
    if short in ("extf", "truncf"):
        return _rounded(to, x)
    return f'bitcast("{from_}", "{to}", {x})' if short == "bitcast" else None


def _wrapped(type_: str, text: str) -> str:
    """An integer expression, modulo the width of its type."""
    if type_ == "i1":
        return f"({text}) & 1 != 0"
    found = _SIGNED.match(type_)
    if not found:
        return text      # index: addresses do not come near 2^63
    half = 1 << int(found[1]) - 1
    return f"({text} + {half} & {2 * half - 1}) - {half}"


def _unsigned(type_: str, x: str) -> str:
    if type_ == "i1":
        return f"int({x})"
    found = _SIGNED.match(type_)
    return f"({x} & {(1 << (int(found[1]) if found else 64)) - 1})"


def _rounded(type_: str, text: str) -> str:
    return text if type_ == "f64" else f"{type_}({text})"


def _literal(value: Any, type_: str) -> str:
    if type_ == "i1":
        return "True" if int(value.value.data) else "False"
    data = value.value.data
    if isinstance(data, float):
        return repr(data) if data - data == 0 else f"float('{data}')"
    return f"({data})" if int(data) < 0 else str(int(data))


def _subview(op: Any, found: dict[str, Any], source: str, offsets: list[str], sizes: list[str],
             steps: list[str]) -> str:
    type_ = op.results[0].type
    wanted, given = _shape(type_), _integers(found["static_sizes"])
    head = f"{source}, {_tuple(offsets)}, {_tuple(sizes)}, {_tuple(steps)}"
    axes = range(len(given))
    choices = [kept for kept in itertools.combinations(axes, len(wanted))
               if all(given[k] == 1 for k in axes if k not in kept)
               and [None if given[k] == _RUNTIME else given[k] for k in kept] == wanted]
    if len(choices) == 1:
        return f"subview({head}, {choices[0]})"
    return f"subview_dropping({head}, {tuple(choices)}, {tuple(_strides(type_, wanted))})"


def _strides(type_: Any, sizes: list[int | None]) -> list[int | None]:
    """The strides that a memref type says; None where they are only known at run time."""
    layout = re.search(r"strided<\[([^\]]*)\]", str(type_))
    if layout:
        return [None if x.strip() == "?" else int(x) for x in layout[1].split(",") if x.strip()]
    known = [n for n in sizes[1:] if n is not None]
    return list(row_major([1, *known])) if len(known) == len(sizes) - 1 else [None] * len(sizes)


def _shape(type_: Any) -> list[int | None]:
    return [None if n == hivm.DYNAMIC else n for n in hivm.shape(type_)]


def _filled(numbers: Sequence[int | None], operands: Iterable[str]) -> list[str]:
    """Numbers of the text, with the operands where it has none."""
    rest = iter(operands)
    return [next(rest) if n is None or n == _RUNTIME else str(n) for n in numbers]


def _integers(attribute: Any) -> list[int]:
    return [int(n) for n in attribute.get_values()]


def _tuple(parts: Sequence[str]) -> str:
    return "(" + "".join(f"{part}, " for part in parts).rstrip(" ") + ")"


def _word(attribute: Any) -> str:
    """The word inside `#hivm.pipe<PIPE_V>` and the like."""
    found = re.search(r'<\s*"?(\w+)"?\s*>', str(attribute))
    return found[1] if found else str(attribute)


def _pipe(attribute: Any) -> str:
    return _word(attribute).removeprefix("PIPE_")
