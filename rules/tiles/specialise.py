"""ASC211 specialise."""
from __future__ import annotations

import libcst as cst

from migrate.analysis.kernels import Kernel
from migrate.analysis.constants import given
from migrate.asked import Asked, Literal, Setting
from migrate.edit import code
from migrate.errors import MigrateError
from migrate.rule import SAME, Example, Ref, Rule, Safety
from migrate.tree import Edit, find
from rules.launch.leftovers import leftovers
from rules.tiles import _signature
from rules.tiles._body import Body
from rules.tiles._dead import assigned, reads
from rules.tiles._outside import SPLIT, Outside, outside


class Specialise(Rule):
    """DOC"""

    id = "ASC211"
    name = "specialise"
    summary = "constexpr values given by `--set` are folded into the kernel; what only other values need goes"
    safety = Safety.SAFE
    phase = -1
    references = ()
    examples = ()

    def finish(self) -> None:
        if not self.source.asked.settings:
            return
        changed: list[tuple[cst.FunctionDef, cst.FunctionDef]] = []
        for kernel in list(self.source.kernels.values()):
            values = given(self.source, kernel)
            if values:
                changed += self._kernel(kernel, values)
        if changed:
            names = {n.value for _, new in changed for n in find(new, cst.Name)}
            leftovers(self.source, [old for old, _ in changed], names, self.replace)

    def _kernel(self, kernel: Kernel, values: dict[str, Literal]) -> list[tuple[cst.FunctionDef, cst.FunctionDef]]:
        """The kernel before and after, if it changes."""
        refused: dict[str, str] = {}
        while True:
            found = outside(kernel, {n: v for n, v in values.items() if n not in refused}, self.source.asked.split)
            body = self._body(found)
            again = body.rebound & found.asked.keys()
            refused.update({**found.refused, **dict.fromkeys(again, "the kernel assigns it anew")})
            if not again:
                break
        for name, why in refused.items():
            self.report(kernel.node.name, f"`{name}` = {values[name]!r} is not folded into `{kernel.name}`: {why}")
        if not found.asked:
            return []
        gone, decorators, edits = _leaving(found, body)
        node = kernel.node.with_changes(
            decorators=decorators, params=_signature.parameters(found, gone) if gone else kernel.node.params,
            body=body.with_assertions(gone))
        staying: dict[str, list[str]] = {}
        for name in found.asked:
            if name in body.values and name not in gone and found.keeps(name) != SPLIT:
                staying.setdefault(found.keeps(name), []).append(f"`{name}`")
        for reason, names in staying.items():
            stay = "stays" if len(names) == 1 else "stay"
            self.report(kernel.node.name, f"{', '.join(names)} of `{kernel.name}` {stay}, checked by a static assertion: "
                                          f"{reason}")
        if code(node) == code(kernel.node):
            return []
        edits.update(_signature.launch_edits(found, gone))
        edits[kernel.node] = node
        if not self._commit(kernel, found, body, gone, edits):
            return []
        return [(kernel.node, node)]

    def _body(self, found: Outside) -> Body:
        try:
            return Body(found)
        except MigrateError as error:
            name = found.kernel.node.name
            raise MigrateError(f"kernel {name.value}, line {self.source.tree.span(name)[0]}: {error}") from error

    def _commit(self, kernel: Kernel, found: Outside, body: Body, gone: list[str],
                edits: dict[cst.CSTNode, Edit]) -> bool:
        tree = self.source.tree
        places: dict[str, list[cst.CSTNode]] = {}
        for event in body.events:
            if event.node in tree:
                places.setdefault(event.text, []).append(event.node)
        numbers: dict[str, list[cst.CSTNode]] = {}
        for name in body.replaced:
            if name in tree:
                numbers.setdefault(name.value, []).append(name)
        touched = [n for nodes in (*places.values(), *numbers.values()) for n in nodes]
        if any(self.source.ignored(n, self) for n in (*touched, *edits)):
            return False
        values = ", ".join(f"{name} = {value!r}" for name, value in found.asked.items() if name in body.values)
        self.together(edits, f"`{kernel.name}` is specialised for {values}", at=kernel.node.name)
        for number, nodes in numbers.items():
            if number in body.values:
                self._add(nodes[0], f"`{number}` is {body.values[number]!r}", tuple(nodes))
        for text, nodes in places.items():
            self._add(nodes[0], text, tuple(nodes))
        if gone:
            nodes = [kernel.params[name].node for name in gone]
            dead = ", ".join(f"`{name}`" for name in gone if name not in found.values)
            more = f"; only what has gone read {dead}" if dead else ""
            self._add(nodes[0], f"`{kernel.name}` and its launches lose {_count(len(gone), 'parameter')}{more}",
                      tuple(nodes))
        for launch in found.launches:
            if found.conditions.get(launch):
                never = "".join(f"; `{text}` is never None, so this launch will fail" for text in found.never[launch])
                self._add(launch.call, f"the launch states what `{kernel.name}` is specialised for{never}",
                          (launch.call,))
        return True


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _leaving(found: Outside, body: Body) -> tuple[list[str], list[cst.Decorator], dict[cst.CSTNode, Edit]]:
    """Parameters that leave, with the decorators and grids that are left."""
    read = reads(body.bare).keys() | assigned(body.bare)
    was_read = reads(found.kernel.node.body)
    gone = [name for name in found.kernel.params if name not in read and not found.keeps(name)
            and (name in body.values or name in was_read)]
    for name in body.values:
        if name in read:
            found.stay.setdefault(name, "the kernel still reads it")
    while True:
        decorators = _signature.decorators(found, gone)
        edits = _signature.grid_edits(found, gone)
        named = _signature.still_named(found, decorators, gone, edits)
        if not named:
            return gone, decorators, edits
        for name in named:
            found.stay[name] = "a decorator, a grid or the launching function names it in a string"
        gone = [name for name in gone if name not in named]
