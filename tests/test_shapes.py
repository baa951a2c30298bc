"""What the analysis proves about host tensors, and what it must not."""
from __future__ import annotations

import textwrap

import libcst as cst
import pytest

from migrate.analysis.dims import Dim
from migrate.analysis.shapes import HostShapes
from migrate.analysis.values import as_dim, as_tensor
from migrate.source import Source

HEAD = "import math\nimport torch\nimport triton\nfrom einops import rearrange\n\n"


def tensor(body: str, name: str, given: str = "x, y=None, n=None", assume: dict[str, bool] | None = None):
    """The tensor called `name` at the end of a function with this body."""
    text = f"{HEAD}def f({given}):\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n    here()\n"
    source = Source.parse(text)
    shapes = HostShapes(source, source.definitions["f"])
    here = next(c for c in source.tree.all(cst.Call) if isinstance(c.func, cst.Name) and c.func.value == "here")
    return as_tensor(shapes.before(here).get(name), assume)


def shape(body: str, name: str = "x", **kw: str) -> list[str] | None:
    found = tensor(body, name, **kw).shape
    return [str(d) for d in found] if found is not None else None


@pytest.mark.parametrize(("body", "expected"), [
    ("b, t, h = x.shape", ["b", "t", "h"]),
    ("b, _, h = x.shape", ["b", "x.shape[1]", "h"]),
    ("b, t = x.size()", ["b", "t"]),
    ("t = x.shape[1]\nb, u, h = x.shape", ["b", "t", "h"]),
    ("b, t = y.shape\nassert x.shape == (b, 2 * t)", ["b", "2 * t"]),
    ("b, t = y.shape\nassert x.shape == y.shape", ["b", "t"]),
    ("b, t = y.shape\nif x.shape != (b, t):\n    raise ValueError", ["b", "t"]),
    ("assert x.dim() == 2", ["x.shape[0]", "x.shape[1]"]),
    ("b, t = y.shape\nx = torch.empty(b, t)", ["b", "t"]),
    ("b, t = y.shape\nx = torch.zeros((b, t, 4), device=y.device)", ["b", "t", "4"]),
    ("b, t = y.shape\nx = torch.empty_like(y)", ["b", "t"]),
    ("b, t = y.shape\nx = y.new_empty(t, b)", ["t", "b"]),
    ("b, t = y.shape\nx = y.view(b, -1, t)", ["b", "1", "t"]),
    ("b, t = y.shape\nx = y.reshape(-1)", ["b * t"]),
    ("b, t = y.shape\nx = y.unsqueeze(1)", ["b", "1", "t"]),
    ("b, t = y.shape\nx = y.transpose(0, 1)", ["t", "b"]),
    ("b, t = y.shape\nx = y.sum(dim=0)", ["t"]),
    ("b, t, h = y.shape\nx = rearrange(y, 'b t h -> b (t h)')", ["b", "h * t"]),
    ("b, t = y.shape\nx = rearrange(y, 'b (c l) -> b c l', l=n)", ["b", "c", "n"]),
    ("b, t = y.shape\nc = triton.cdiv(t, n)\nx = torch.empty(b, c)", ["b", "triton.cdiv({t}, {n})"]),
    ("b, t = y.shape\nx = torch.empty((b, t) if n else (b, t, 4))", None),
    ("x = torch.empty(n)", None),
    ("b, t = x.shape\nx.unsqueeze_(0)", None),
    ("b, t = x.shape\nmatch n:\n    case 1:\n        x = x[0]", None),
    ("x = torch.empty(n, 2)", ["n", "2"]),
    ("x = torch.empty((n,))", ["n"]),
    ("x = y.reshape(n)", None),
    ("r, c = y.shape\nsizes = [r, c]\nsizes[1] = 2\nx = torch.zeros(sizes)", None),
    ("r, c = y.shape\nif x.shape[1] != n != y.shape[1]:\n    raise ValueError\nx = x", None),
    ("b, t = x.shape\nz = x\nz.t_()", None),
    ("b, t = x.shape\nx.data = y", None),
    ("b, t = y.shape\nx = y.squeeze(5)", None),
    ("x = torch.zeros(4, len(n))", ["4", "len(n)"]),
    ("x = torch.arange(4)", None),
    ("for i in range(3):\n    x = x[i]", None),
    ("if n:\n    x = x.unsqueeze(0)", None),
    ("b, t = x.shape\nx = x[:, 1:]", None),
])
def test_shape(body: str, expected: list[str] | None) -> None:
    assert shape(body) == expected


@pytest.mark.parametrize(("body", "contiguous"), [
    ("x = x.contiguous()", True),
    ("if not x.is_contiguous():\n    x = x.contiguous()", True),
    ("x = x.contiguous() if not x.is_contiguous() else x", True),
    ("assert x.is_contiguous()", True),
    ("x = torch.empty(2, 3)", True),
    ("x = torch.empty_like(y, memory_format=torch.contiguous_format)", True),
    ("y = y.contiguous()\nx = torch.empty_like(y)", True),
    ("x = x.contiguous().view(2, 3)", True),
    ("if x.stride(-1) != 1:\n    x = x.contiguous()", False),
    ("x = torch.empty_like(y)", False),
    ("x = x.contiguous().transpose(0, 1)", False),
    ("x = x.contiguous()\nx = x[:, 1:]", False),
    ("if n:\n    x = x.contiguous()", False),
    ("while n:\n    x = x.contiguous()", False),
    ("x = x.contiguous(memory_format=torch.channels_last)", False),
    ("assert x.is_contiguous(memory_format=torch.channels_last)", False),
    ("x = torch.empty(2, 3, 4, 5, memory_format=torch.channels_last)", False),
    ("x = x.contiguous().to(torch.float32, memory_format=torch.channels_last)", False),
    ("x = torch.zeros(2, 3, out=y)", False),
])
def test_contiguity_is_proven_or_not_claimed(body: str, contiguous: bool) -> None:
    assert tensor(body, "x").contiguous is contiguous


def test_a_view_remembers_that_it_is_one() -> None:
    assert tensor("x = y.transpose(1, 2)", "x").layout == "transposed"
    assert tensor("x = y.expand(4, 4)", "x").layout == "expanded"
    assert tensor("x = y.transpose(1, 2).contiguous()", "x").layout == ""


def test_none_and_flags_that_stand_for_it() -> None:
    body = """
        b, t = x.shape
        has_y = y is not None
        if has_y:
            assert y.shape == (b, t)
            y = y.contiguous()
        """
    inside = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    text = f"{HEAD}def f(x, y=None):\n{inside}\n    here(y if has_y else 0)\n"
    source = Source.parse(text)
    shapes = HostShapes(source, source.definitions["f"])
    here = next(c for c in source.tree.all(cst.Call) if isinstance(c.func, cst.Name) and c.func.value == "here")
    flag, test = cst.parse_expression("has_y"), cst.parse_expression("y is None")
    assert shapes.test_key(flag, here)[0] == shapes.test_key(test, here)[0]
    assert shapes.test_key(flag, here)[1] != shapes.test_key(test, here)[1]
    key, holds = shapes.test_key(flag, here)
    found = as_tensor(shapes.before(here)["y"], {key: holds})
    assert found.contiguous
    assert [str(d) for d in found.shape or ()] == ["b", "t"]


def test_a_test_on_a_name_that_changed_is_another_test() -> None:
    text = f"{HEAD}def f(x, n):\n    a = 1 if n == 2 else x.shape[0]\n    n = 3\n    here(a)\n"
    source = Source.parse(text)
    shapes = HostShapes(source, source.definitions["f"])
    here = next(c for c in source.tree.all(cst.Call) if isinstance(c.func, cst.Name) and c.func.value == "here")
    key, holds = shapes.test_key(cst.parse_expression("n == 2"), here)
    assert as_dim(shapes.before(here)["a"], {key: holds}) != Dim.number(1)


def test_a_branch_that_ends_tells_about_the_rest() -> None:
    assert shape("if x.dim() != 2:\n    raise ValueError\n") == ["x.shape[0]", "x.shape[1]"]


def test_rebinding_a_size_does_not_change_a_shape() -> None:
    found = shape("b, t = x.shape\nb = 1")
    assert found == ["b", "t"]
    text = f"{HEAD}def f(x):\n    b, t = x.shape\n    b = 1\n    here(b)\n"
    source = Source.parse(text)
    shapes = HostShapes(source, source.definitions["f"])
    here = next(c for c in source.tree.all(cst.Call) if isinstance(c.func, cst.Name) and c.func.value == "here")
    env = shapes.before(here)
    assert as_dim(env["b"]) == Dim.number(1)
    assert as_tensor(env["x"]).shape == (Dim.symbol("b"), Dim.symbol("t"))


def test_dimensions_divide_symbol_by_symbol() -> None:
    a, b = Dim.symbol("a"), Dim.symbol("b")
    assert (a * b * Dim.number(6)).without(b * Dim.number(2)) == a * Dim.number(3)
    assert a.without(b) is None
    assert str(Dim.number(1)) == "1"
    assert str(Dim.number(2) * b * a) == "2 * a * b"


@pytest.mark.parametrize("rebind", [
    "if (b := b // 2) > 100:\n    pass",
    "match y:\n    case [_, b]:\n        pass",
    "def inner():\n    nonlocal b\n    b -= 1\ninner()",
    "for _ in range(2):\n    with y as b:\n        pass",
])
def test_a_name_that_is_bound_out_of_sight_is_not_known(rebind: str) -> None:
    body = textwrap.indent(f"b, t = x.shape\n{rebind}\nhere(b)", "    ")
    source = Source.parse(f"{HEAD}def f(x, y):\n{body}\n")
    shapes = HostShapes(source, source.definitions["f"])
    here = next(c for c in source.tree.all(cst.Call) if isinstance(c.func, cst.Name) and c.func.value == "here")
    env = shapes.before(here)
    assert as_dim(env.get("b")) != (as_tensor(env["x"]).shape or (None,))[0]
