"""What stands around a kernel and speaks of its parameters: decorators, launches, grids, other modules."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import libcst as cst

from migrate.analysis.autotune import is_autotune
from migrate.analysis.constants import given
from migrate.analysis.control import bindings
from migrate.analysis.kernels import HEURISTICS, Kernel, match_args
from migrate.analysis.known import PRESENT, UNKNOWN, Known
from migrate.analysis.launches import Launch
from migrate.asked import Literal
from migrate.edit import code, is_atom, parameters, parenthesised
from migrate.source import Source
from migrate.tree import find
from rules.host.contiguous_inputs import stands_alone
from rules.tiles._fold import inverse, literal

SPLIT = "its axis is to be split"


@dataclass
class Outside:
    """`values` are given for a kernel, or follow from what is given by its heuristics. `present` are parameters that
    are not None. `refused` are given values that cannot be folded, with the reason. `stay` are parameters that
    cannot leave the signature; a parameter of which nothing else is known leaves it when nothing reads it."""

    kernel: Kernel
    launches: list[Launch]
    values: dict[str, Literal]
    asked: dict[str, Literal] = field(default_factory=dict)
    present: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    stay: dict[str, str] = field(default_factory=dict)
    everything_stays: str = ""
    conditions: dict[Launch, list[str]] = field(default_factory=dict)
    never: dict[Launch, list[str]] = field(default_factory=dict)     # slices that would have to be None

    @property
    def known(self) -> Known:
        return Known(self.kernel.source, self.values, {}, frozenset(self.present))

    def keeps(self, name: str) -> str:
        """Why a parameter cannot leave the signature; "" where it can."""
        return self.everything_stays or self.stay.get(name, "")


def outside(kernel: Kernel, settings: dict[str, Literal], split: tuple[str, ...]) -> Outside:
    source = kernel.source
    launches = [launch for launch in source.launches if launch.kernel is kernel]
    refused: dict[str, str] = {}
    stay = {name: SPLIT for name in settings if name in split}
    while True:
        before = len(refused) + len(stay)
        values = {n: v for n, v in settings.items() if n not in refused}
        found = Outside(kernel, launches, values, refused=refused, stay=stay)
        found.asked = dict(found.values)
        found.everything_stays = _used_elsewhere(source, kernel, launches)
        _heuristics(found)
        _tuned(found)
        for launch in launches:
            found.conditions[launch] = _conditions(found, launch)
        _called(found)
        for name, value in found.asked.items():
            if isinstance(value, float) and found.keeps(name):
                refused.setdefault(name, f"a static assertion holds for an integer as well, and {found.keeps(name)}")
        if len(refused) + len(stay) == before:
            return found


def _used_elsewhere(source: Source, kernel: Kernel, launches: list[Launch]) -> str:
    uses = sum(n.value == kernel.name for n in source.tree.all(cst.Name))
    if uses > len(launches) + 1:
        return "the kernel is used in other ways than by launching it"
    if source.project is not None and source.project.named_elsewhere(kernel.name, source.module):
        return "another module of the package names the kernel and may launch it"
    if not all(launch.matched for launch in launches):
        return "a launch of the kernel could not be matched to its parameters"
    if not all(stands_alone(launch) for launch in launches):
        return "a launch of the kernel is no statement of its own, and no assertion can stand before it"
    return ""


# Heuristics


@dataclass(frozen=True)
class Heuristic:
    """One value of `@triton.heuristics`. `test` is what its lambda computes, with parameters as plain names; None
    where it is not a lambda that only reads arguments."""

    name: str
    element: cst.DictElement
    test: cst.BaseExpression | None


def heuristics(kernel: Kernel) -> Iterator[Heuristic]:
    for decorator in kernel.decorator(HEURISTICS):
        table = table_of(decorator)
        for element in table.elements if table is not None else ():
            if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString):
                yield Heuristic(str(element.key.evaluated_value), element, _read(element.value))


def table_of(decorator: cst.Decorator) -> cst.Dict | None:
    call = decorator.decorator
    if isinstance(call, cst.Call) and len(call.args) == 1 and isinstance(call.args[0].value, cst.Dict):
        return call.args[0].value
    return None


def _read(node: cst.BaseExpression) -> cst.BaseExpression | None:
    if not isinstance(node, cst.Lambda) or len(node.params.params) != 1:
        return None
    argument = node.params.params[0].name.value
    test = written(node.body, argument, lambda name: cst.Name(name))
    return None if any(n.value == argument for n in find(test, cst.Name)) else test


def written(node: cst.CSTNode, argument: str, write: Callable[[str], cst.BaseExpression | None]) -> cst.BaseExpression:
    """An expression with each `argument["name"]` as `write(name)`, where that is not None."""

    class Writer(cst.CSTTransformer):
        def leave_Subscript(self, original_node: cst.Subscript,
                            updated_node: cst.Subscript) -> cst.BaseExpression:
            name = item_of(original_node, argument)
            new = write(name) if name else None
            return updated_node if new is None else new

    new = node.visit(Writer())
    assert isinstance(new, cst.BaseExpression)
    return new


def item_of(node: cst.Subscript, argument: str) -> str:
    """The name in `argument["name"]`; "" for anything else."""
    if not isinstance(node.value, cst.Name) or node.value.value != argument or len(node.slice) != 1:
        return ""
    index = node.slice[0].slice
    if isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString):
        return str(index.value.evaluated_value)
    return ""


def _heuristics(found: Outside) -> None:
    kernel = found.kernel
    for decorator in kernel.decorator(HEURISTICS):
        if table_of(decorator) is None:
            found.everything_stays = found.everything_stays or "its heuristics could not be read"
            return
    changed = True
    while changed:
        changed = False
        for heuristic in heuristics(kernel):
            name, test = heuristic.name, heuristic.test
            if test is None or name not in kernel.params:
                if name in found.values:
                    found.stay[name] = "its heuristic is no lambda that can be read"
                continue
            value = found.known.value(test)
            if value is not UNKNOWN and value is not PRESENT:
                if name not in found.values:
                    found.values[name] = value
                    changed = True
                elif not _same(found.values[name], value) and name not in found.refused:
                    found.refused[name] = f"its heuristic gives {value!r}"
            elif name in found.values and isinstance(found.values[name], bool):
                changed |= _follows(found, test, found.values[name] is True)


def _follows(found: Outside, test: cst.BaseExpression, truth: bool) -> bool:
    """`args["g"] is not None` is False: g is None."""
    if not isinstance(test, cst.Comparison) or not isinstance(test.left, cst.Name) or len(test.comparisons) != 1:
        return False
    how, other = test.comparisons[0].operator, test.comparisons[0].comparator
    name = test.left.value
    if not isinstance(how, (cst.Is, cst.IsNot)) or code(other) != "None" or name not in found.kernel.params:
        return False
    if truth is isinstance(how, cst.Is):
        if name in found.values:
            return False
        found.values[name] = None
        return True
    if name in found.present:
        return False
    found.present.add(name)
    return True


# Autotune


def configs(source: Source, decorator: cst.Decorator) -> Iterator[tuple[cst.Call, cst.DictElement, str]]:
    """Each constant of each `triton.Config` that is written in a decorator."""
    for call in find(decorator, cst.Call):
        if source.qualified(call.func).endswith("triton.Config") and call.args and isinstance(
                call.args[0].value, cst.Dict):
            for element in call.args[0].value.elements:
                if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString):
                    yield call, element, str(element.key.evaluated_value)


def tuners(source: Source, kernel: Kernel) -> list[cst.Decorator]:
    return [d for d in kernel.node.decorators if isinstance(d.decorator, cst.Call) and is_autotune(source, d.decorator)]


def _tuned(found: Outside) -> None:
    """Values that configurations supply as well must be among theirs, and must be written where they can be edited."""
    source = found.kernel.source
    for decorator in tuners(source, found.kernel):
        call = cst.ensure_type(decorator.decorator, cst.Call)
        lists = [a.value for a in call.args if a.keyword is None or a.keyword.value == "configs"][:1]
        supplied: dict[str, list[cst.DictElement]] = {}
        for _, element, name in configs(source, decorator):
            supplied.setdefault(name, []).append(element)
        for name, elements in supplied.items():
            if name in found.values:
                reason = "" if lists and isinstance(lists[0], (cst.List, cst.ListComp)) else "they are not a list here"
                reason = reason or _supplies(lists[0], elements, found.values[name])
                if reason:
                    found.refused.setdefault(name, f"its autotune configurations: {reason}")
        if lists and not isinstance(lists[0], (cst.List, cst.ListComp)) and not supplied:
            for name in found.asked:
                passed = found.launches and all(name in launch.args for launch in found.launches)
                if not passed and not any(h.name == name for h in heuristics(found.kernel)) \
                        and found.kernel.params[name].default is None:
                    found.refused.setdefault(name, "its autotune configurations may supply it and are not a list here")


def _supplies(where: cst.BaseExpression, elements: list[cst.DictElement], value: Literal) -> str:
    if isinstance(where, cst.ListComp):
        element = elements[0].value
        clause = clause_of(where, element)
        if len(elements) != 1 or clause is None:
            return "not understood"
        listed = clause.iter
        if isinstance(listed, (cst.List, cst.Tuple)):
            values = [_literal_of(e.value) for e in listed.elements]
            if UNKNOWN not in values and not any(_same(v, value) for v in values):
                return f"none has {value!r}"
        return ""
    values = [_literal_of(e.value) for e in elements]
    if UNKNOWN in values:
        return "not understood"
    return "" if any(_same(v, value) for v in values) else f"none has {value!r}"


def clause_of(where: cst.ListComp, element: cst.BaseExpression) -> cst.CompFor | None:
    """The `for` of a comprehension that binds a name."""
    clause: cst.CompFor | None = where.for_in
    while clause is not None:
        if isinstance(element, cst.Name) and isinstance(clause.target, cst.Name) \
                and clause.target.value == element.value:
            return clause
        clause = clause.inner_for_in
    return None


# Launches


def _conditions(found: Outside, launch: Launch) -> list[str]:
    """What has to hold on the host for the values that are folded in, as far as the launch does not show it."""
    out: list[str] = []
    found.never[launch] = []
    tests = {h.name: h.test for h in heuristics(found.kernel)}
    explicit = found.asked
    for name, value in found.values.items():
        bound = launch.args.get(name)
        if bound is not None and bound.index is None and _contradicts(found, launch, name, bound.value, value):
            continue
        if found.keeps(name) or name in found.refused:
            continue
        if name in tests:
            if name not in explicit or tests[name] is None:
                continue                        # follows from the others, or stays
            test = tests[name]
            assert test is not None
            if found.known.value(test) is not UNKNOWN and not _rests_on(found, test):
                continue
            passed = _at_launch(found, launch, test)
            if passed is None:
                found.stay[name] = "what its heuristic tests is not passed by every launch"
                continue
        elif name not in explicit:
            continue
        else:
            if bound is not None and bound.index is not None:
                found.stay[name] = "a launch passes it as part of a tuple"
                continue
            passed = bound.value if bound is not None else found.kernel.params[name].default
            if passed is None:
                if not any(name == n for d in tuners(launch.source, found.kernel)
                           for _, _, n in configs(launch.source, d)):
                    found.stay[name] = "a launch does not pass it"
                continue
        _condition(found, launch, name, passed, value, out)
    return list(dict.fromkeys(out))


def _rests_on(found: Outside, test: cst.BaseExpression) -> bool:
    """Whether a heuristic is known only because its own value was given."""
    return Known(found.kernel.source, found.asked).value(test) is UNKNOWN


def _at_launch(found: Outside, launch: Launch, test: cst.BaseExpression) -> cst.BaseExpression | None:
    """What a heuristic tests, with the arguments of a launch in it."""
    missing: list[str] = []

    class Writer(cst.CSTTransformer):
        def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
            name = original_node.value
            if name not in found.kernel.params:
                return updated_node
            bound = launch.args.get(name)
            value = bound.value if bound is not None and bound.index is None else found.kernel.params[name].default
            if bound is not None and bound.index is not None:
                value = None
            if value is None and name in found.asked:
                value = literal(found.asked[name])
            if value is None:
                missing.append(name)
                return updated_node
            return value if is_atom(value) else parenthesised(value)

    new = test.visit(Writer())
    assert isinstance(new, cst.BaseExpression)
    return None if missing else new


def _contradicts(found: Outside, launch: Launch, name: str, passed: cst.BaseExpression, value: Literal) -> bool:
    known = Known(launch.source).value(passed)
    if known is UNKNOWN or known is PRESENT or _same(known, value):
        return False
    line = launch.source.tree.span(launch.call)[0]
    found.refused[name] = f"the launch at line {line} passes {known!r}"
    return True


def _condition(found: Outside, launch: Launch, name: str, passed: cst.BaseExpression, value: Literal,
               out: list[str]) -> None:
    if _contradicts(found, launch, name, passed, value) or Known(launch.source).value(passed) is not UNKNOWN:
        return
    if next(find(passed, cst.NamedExpr, cst.Await), None) is not None:
        found.stay[name] = "a launch passes an expression that binds a name"
        return
    out.append(_says(passed, value))
    kind = _kind_to_check(found, launch, name, passed, value)
    base = passed.left if isinstance(passed, cst.Comparison) else passed
    if out[-1].endswith(" is None") and next(find(base, cst.Slice), None) is not None:
        found.never[launch].append(code(base))
    if kind:
        out.append(f"isinstance({code(passed)}, {kind})")


def _kind_to_check(found: Outside, launch: Launch, name: str, passed: cst.BaseExpression, value: Literal) -> str:
    """The type that a launch has to pass, where an equal value, or one of the same truth, may be of another."""
    if isinstance(value, bool):
        tested = isinstance(passed, cst.Comparison) or (
            isinstance(passed, cst.UnaryOperation) and isinstance(passed.operator, cst.Not))
        return "" if tested or _only_tested(found.kernel, name) else "bool"
    if isinstance(value, float):
        return "float"
    # K = 64.0 where the host divides: everything else that a host counts with gives an integer
    origin = launch.source_value(passed)
    divided = isinstance(value, int) and next(find(origin, cst.Divide, cst.Float), None) is not None
    return "int" if divided else ""


def _only_tested(kernel: Kernel, name: str) -> bool:
    """Whether a kernel asks for the truth of a parameter and for nothing else of it."""
    tree = kernel.source.tree
    for node in find(kernel.node.body, cst.Name):
        if node.value != name:
            continue
        inner: cst.CSTNode = node
        outer = tree.parent(node)
        while isinstance(outer, cst.BooleanOperation):
            inner, outer = outer, tree.parent(outer)
        if isinstance(outer, cst.UnaryOperation) and isinstance(outer.operator, cst.Not):
            continue                            # a bool, whatever is done with it
        if not isinstance(outer, (cst.If, cst.IfExp, cst.While)) or outer.test is not inner:
            return False
    return True


# Calls of a helper


def _called(found: Outside) -> None:
    """A call in the file that passes another value, or leaves the default of another one, contradicts."""
    kernel = found.kernel
    source = kernel.source
    for call in source.tree.all(cst.Call):
        if not isinstance(call.func, cst.Name) or call.func.value != kernel.name:
            continue
        around = source.tree.enclosing(call, cst.FunctionDef)
        caller = source.kernels.get(around.name.value) if around is not None else None
        known = Known(source, given(source, caller) if caller is not None and caller.node is around else {})
        passed = {name: arg.value for arg, name in match_args(call, list(kernel.params))}
        for name, value in found.asked.items():
            node = passed.get(name)
            if node is None and not any(arg.star for arg in call.args):
                node = kernel.params[name].default
                known = Known(source)
            got = known.value(node) if node is not None else UNKNOWN
            if got is not UNKNOWN and got is not PRESENT and not _same(got, value):
                found.refused.setdefault(name, f"the call at line {source.tree.span(call)[0]} passes {got!r}")


def _says(passed: cst.BaseExpression, value: Literal) -> str:
    """A condition on the host, fit to stand between two `and`."""
    if value is True or value is False:
        node = passed if value else inverse(passed)
        loose = isinstance(node, (cst.BooleanOperation, cst.IfExp, cst.Lambda)) and not node.lpar
        return code(parenthesised(node) if loose else node)
    tight = isinstance(passed, (cst.BinaryOperation, cst.UnaryOperation)) or is_atom(passed)
    left = code(passed if tight and not isinstance(getattr(passed, "operator", None), cst.Not)
                else parenthesised(passed))
    return f"{left} is None" if value is None else f"{left} == {code(literal(value))}"


def _same(a: Literal, b: Literal) -> bool:
    """1, True and 1.0 are equal in Python and make different kernels: `n // 2.0` is another thing than `n // 2`."""
    return repr(a) == repr(b)


def _literal_of(node: cst.BaseExpression) -> Literal:
    value: Literal = Known(Source.parse("")).value(node)
    return value


def grid_function(launch: Launch) -> cst.Lambda | cst.FunctionDef | None:
    """The function that a launch names as its grid."""
    grid = launch.grid
    if isinstance(grid, cst.Lambda):
        return grid
    if not isinstance(grid, cst.Name):
        return None
    value = launch.source_value(grid)
    if isinstance(value, cst.Lambda):
        return value
    if launch.function is not None:
        inside = [f for f in find(launch.function.body, cst.FunctionDef) if f.name.value == grid.value]
        if inside or any(n == grid.value for n, _, _ in bindings(launch.function)) or any(
                p.name.value == grid.value for p in parameters(launch.function)):
            return inside[0] if len(inside) == 1 else None
    function = launch.source.definitions.get(grid.value)
    return function if function is not None and launch.source.tree.parent(function) is None else None


def argument_of(function: cst.Lambda | cst.FunctionDef) -> str:
    params = function.params.params
    return params[0].name.value if len(params) == 1 else ""


def strings_in(node: cst.CSTNode | None) -> set[str]:
    return {str(s.evaluated_value) for s in find(node, cst.SimpleString)} if node is not None else set()
