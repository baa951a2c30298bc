"""The tree against LibCST itself: same text, same positions, same result of an edit."""
from __future__ import annotations

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider

from migrate.tree import Tree, children, find

TEXTS = {
    "plain": ("# header\n\nimport a\n\n\ndef f(x,  # first\n      y):\n    '''doc'''\n    return x + (y  # why\n"
              "                * 2)\n\n# end\n"),
    "windows": "import a\r\n\r\ndef f(x):\r\n    return [x,\r\n            x]\r\n",
    "no newline at the end": "x = 1\ny = (2,\n     3)",
    "decorators": "@a\n@b(1,\n   2)\ndef f(): pass\n\nclass C:\n    @p\n    def g(self): return 1\n",
    "empty": "",
    "comment only": "# nothing\n",
    "tabs": "if x:\n\ty = 1\n\tif z:\n\t\ty = 2\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_text_survives(text: str) -> None:
    assert Tree.parse(text).code == text


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_positions_are_those_of_libcst(text: str) -> None:
    tree = Tree.parse(text)
    positions = MetadataWrapper(tree.module, unsafe_skip_copy=True).resolve(PositionProvider)
    for node in tree.all(cst.Name, cst.Call, cst.SimpleStatementLine, cst.Return, cst.FunctionDef, cst.BinaryOperation):
        line, col, last = tree.span(node)
        at = positions[node]
        assert (line, col) == (at.start.line, at.start.column + 1)
        if not isinstance(node, cst.FunctionDef):       # where a block ends is a matter of taste
            assert last == at.end.line


def test_an_edit_leaves_other_statements_as_they_are() -> None:
    tree = Tree.parse("a = f(1)\nb = f(2)\nc = f(3)\n")
    second = next(n for n in find(tree.units[1].statement, cst.Integer))
    new = tree.replace({second: cst.Integer("20")})
    assert new.code == "a = f(1)\nb = f(20)\nc = f(3)\n"
    assert tree.code == "a = f(1)\nb = f(2)\nc = f(3)\n"
    assert new.units[0] is tree.units[0]
    assert new.units[1] is not tree.units[1]


def test_edits_inside_a_replacement_apply() -> None:
    tree = Tree.parse("y = outer(inner(1, k=2), k=3)\n")
    calls = list(tree.all(cst.Call))
    edits = {c: c.with_changes(args=c.args[:-1] if c.args[-1].keyword else c.args) for c in calls}
    assert tree.replace(edits).code.replace(", )", ")") == "y = outer(inner(1))\n"


def test_a_product_replaced_by_its_factor_twice() -> None:
    tree = Tree.parse("y = a * s * t\n")
    outer, inner = sorted(tree.all(cst.BinaryOperation), key=lambda b: len(list(find(b, cst.Name))), reverse=True)
    assert tree.replace({outer: outer.left, inner: inner.left}).code == "y = a\n"


def test_several_statements_for_one_and_none_for_another() -> None:
    tree = Tree.parse("def f():\n    a = 1\n    b = 2\n\nx = 3\n")
    a, b = (line for line in tree.all(cst.SimpleStatementLine) if "=" in cst.Module([]).code_for_node(line)
            and tree.parent(line) is not None)
    edits = {a: cst.FlattenSentinel([cst.parse_statement("n = 0"), a]), b: cst.RemoveFromParent()}
    assert tree.replace(edits).code == "def f():\n    n = 0\n    a = 1\n\nx = 3\n"


def test_a_block_that_becomes_empty_gets_a_pass() -> None:
    tree = Tree.parse("def f():\n    a = 1\n")
    line = next(n for n in tree.all(cst.SimpleStatementLine))
    assert tree.replace({line: cst.RemoveFromParent()}).code == "def f():\n    pass\n"


def test_one_node_used_twice_gets_a_place_for_each() -> None:
    tree = Tree.parse("y = f(a, b)\n")
    call = next(iter(tree.all(cst.Call)))
    twice = call.with_changes(args=[call.args[0], call.args[0].with_changes(value=call.args[0].value)])
    new = tree.replace({call: twice})
    names = [n for n in new.all(cst.Name) if n.value == "a"]
    assert len(names) == 2
    assert len({new.span(n)[1] for n in names}) == 2


def test_children_are_in_source_order() -> None:
    expression = cst.parse_expression("f(a, b)[c]")
    assert [n.value for n in find(expression, cst.Name)] == ["f", "a", "b", "c"]
    assert list(children(cst.parse_expression("x"))) == []
