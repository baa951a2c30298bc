"""What is worked out about the values inside a kernel."""
from __future__ import annotations

import textwrap

import libcst as cst
import pytest

from migrate.analysis.tiles import Tiles, Value, tiles
from migrate.source import Source

HEAD = """\
import triton
import triton.language as tl


@triton.jit
def kernel(q, k, n, scale, D: tl.constexpr, N: tl.constexpr, OUT: tl.constexpr):
"""
SETUP = """
    rows = tl.arange(0, N)
    cols = tl.arange(0, D)
    x = tl.load(q + rows[:, None] * D + cols[None, :])
    y = tl.load(k + rows[:, None] * D + cols[None, :])
    f = x.to(tl.float32)
    h = y.to(tl.bfloat16)
"""


class Project:
    def __init__(self, **modules: str) -> None:
        self.sources = {n: Source.parse(textwrap.dedent(t), module=n, project=self) for n, t in modules.items()}

    def module(self, name: str) -> Source | None:
        return self.sources.get(name)


def analyse(body: str, head: str = HEAD) -> tuple[Source, Tiles]:
    source = Source.parse(head + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n")
    return source, tiles(list(source.kernels.values())[-1])


def last(body: str, head: str = HEAD) -> Value:
    """The value of the last assignment."""
    source, found = analyse(body, head)
    return found.of(list(source.tree.all(cst.Assign))[-1].value)


@pytest.mark.parametrize(("expression", "shape", "dtype"), [
    ("x", ("N", "D"), "elem:q"),
    ("x + x", ("N", "D"), "elem:q"),
    ("x + y", ("N", "D"), ""),
    ("x * 2", ("N", "D"), "elem:q"),
    ("f * h", ("N", "D"), "float32"),
    ("f * x", ("N", "D"), "float32"),
    ("h * 0.5", ("N", "D"), "bfloat16"),
    ("h * N", ("N", "D"), "bfloat16"),
    ("h * scale", ("N", "D"), ""),
    ("h / 2", ("N", "D"), "float32"),
    ("rows / 2", ("N",), "float32"),
    ("rows * 0.5", ("N",), "float32"),
    ("rows < n", ("N",), "int1"),
    ("-f", ("N", "D"), "float32"),
    ("tl.trans(h)", ("D", "N"), "bfloat16"),
    ("x.T", ("D", "N"), "elem:q"),
    ("tl.trans(x, 1, 0)", ("D", "N"), "elem:q"),
    ("tl.dot(x, tl.trans(y))", ("N", "N"), "float32"),
    ("tl.dot(h.to(tl.float16), h.to(tl.float16).T, out_dtype=tl.float16)", ("N", "N"), "float16"),
    ("tl.sum(f, axis=1)", ("N",), "float32"),
    ("tl.sum(h, 0)", ("D",), "float32"),
    ("tl.sum(h.to(tl.float16), 0)", ("D",), "float16"),
    ("tl.sum(x, 0)", ("D",), ""),
    ("tl.sum(f)", (), "float32"),
    ("tl.sum(f, 1, keep_dims=True)", ("N", "1"), "float32"),
    ("f.sum(-1)", ("N",), "float32"),
    ("tl.max(h, 1)", ("N",), "float32"),
    ("tl.argmax(f, 1)", ("N",), "int32"),
    ("tl.cumsum(f, 0)", ("N", "D"), "float32"),
    ("tl.exp(f)[:, None]", ("N", "1", "D"), "float32"),
    ("tl.where(rows[:, None] < n, f, 0.0)", ("N", "D"), "float32"),
    ("tl.where(rows[:, None] < n, h, 0.0)", ("N", "D"), "bfloat16"),
    ("tl.minimum(h, 0.0)", ("N", "D"), "float32"),
    ("tl.minimum(x, 0.0)", ("N", "D"), ""),
    ("tl.zeros([N, D], dtype=tl.float32)", ("N", "D"), "float32"),
    ("tl.zeros((N,), q.dtype.element_ty)", ("N",), "elem:q"),
    ("tl.zeros([D], x.dtype)", ("D",), "elem:q"),
    ("tl.full((N, 2 * D), 1.0, OUT)", ("N", "2 * D"), "dtype:OUT"),
    ("tl.zeros_like(f)", ("N", "D"), "float32"),
    ("tl.cast(n, tl.int64)", (), "int64"),
    ("f.to(y.dtype)", ("N", "D"), "elem:k"),
    ("tl.reshape(f, [N * D])", ("N * D",), "float32"),
    ("tl.broadcast_to(f[:, :, None], [N, D, 4])", ("N", "D", "4"), "float32"),
    ("f[:, None, :]", ("N", "1", "D"), "float32"),
    ("tl.arange(D, 2 * D)", ("(2 * D) - D",), "int32"),
    ("tl.program_id(0) * D + cols", ("D",), ""),       # D may be 0.5
    ("tl.program_id(0) * 4 + cols", ("D",), "int32"),
    ("tl.join(f, f)", ("N", "D", "2"), "float32"),
    ("f if n > 0 else h", ("N", "D"), ""),
    ("tl.load(tl.make_block_ptr(k, (n, D), (D, 1), (0, 0), (N, D), (1, 0)))", ("N", "D"), "elem:k"),
    ("tl.make_tensor_descriptor(k, shape=[n, D], strides=[D, 1], block_shape=[N, D]).load([0, 0])",
     ("N", "D"), "elem:k"),
    ("tl.load(q.to(tl.pointer_type(tl.float32)) + cols)", ("D",), "float32"),
    ("unknown(f)", None, ""),
])
def test_expression(expression: str, shape: tuple[str, ...] | None, dtype: str) -> None:
    value = last(textwrap.dedent(SETUP) + f"out = {expression}")
    assert (value.shape, value.dtype) == (shape, dtype)


def test_an_assigned_number_is_a_scalar_tensor() -> None:
    assert last(SETUP + "    s = 1.0\n    out = h * s").dtype == "float32"
    assert last(SETUP + "    s: tl.constexpr = 1.0\n    out = h * s").dtype == "bfloat16"


def test_branches_join() -> None:
    branch = "a = f\nif {}:\n    a = {}\nout = a"
    setup = textwrap.dedent(SETUP)
    assert last(setup + branch.format("n > 0", "f + 1")).dtype == "float32"
    assert last(setup + branch.format("n > 0", "h")).dtype == ""
    assert last(setup + "if n > 0:\n    a = f\nout = a").dtype == "float32"
    assert last(setup + "a = h\nif n > 0:\n    a = f\n    return\nout = a").dtype == "bfloat16"
    assert last(setup + "a = None\nif n > 0:\n    a = f\nout = a").dtype == "float32"


def test_loops_join_until_nothing_changes() -> None:
    setup = textwrap.dedent(SETUP)
    assert last(setup + "a = f\nfor i in range(n):\n    a += h\nout = a").dtype == "float32"
    late = "a = f\nb = f\nc = f\nfor i in tl.static_range(4):\n    c = b\n    b = a\n    a = h\nout = {}"
    assert [last(setup + late.format(name)).dtype for name in "abc"] == ["", "", ""]
    source, found = analyse(setup + "a = f\nfor i in range(n):\n    use = a\n    a = h")
    use = next(a.value for a in source.tree.all(cst.Assign) if a.targets[0].target.value == "use")
    assert found.of(use).dtype == ""


def test_helpers_are_followed_across_modules() -> None:
    project = Project(**{
        "pack.op": """
            import triton
            import triton.language as tl
            @triton.jit
            def exp(x):
                return tl.exp(x.to(tl.float32))
            @triton.jit
            def both(x, N: tl.constexpr):
                return x, tl.zeros([N], tl.float32)
            """,
        "pack.kernels": """
            import triton
            import triton.language as tl
            from .op import both, exp
            @triton.jit
            def kernel(q, BLOCK: tl.constexpr):
                x = tl.load(q + tl.arange(0, BLOCK))
                a, b = both(exp(x), BLOCK)
                c = a
                d = b
            """})
    source = project.sources["pack.kernels"]
    found = tiles(source.kernels["kernel"])
    a, b = [found.of(s.value) for s in source.tree.all(cst.Assign)][-2:]
    assert (a.shape, a.dtype) == (("BLOCK",), "float32")
    assert (b.shape, b.dtype) == (("BLOCK",), "float32")


def test_recursion_ends() -> None:
    head = "import triton\nimport triton.language as tl\n@triton.jit\ndef f(x):\n    return f(x) + 1\n" + HEAD
    assert last("out = f(n)", head).dtype == ""


def test_what_a_helper_is_handed_may_be_a_tile() -> None:
    source = Source.parse("import triton\n@triton.jit\ndef f(x):\n    y = x\n    return y\n")
    value = tiles(source.kernels["f"]).of(next(source.tree.all(cst.Assign)).value)
    assert (value.shape, value.kind) == (None, "")


def test_unchanged_kernels_are_not_read_again() -> None:
    source, found = analyse("x = tl.load(q)")
    assert tiles(source.kernels["kernel"]) is found
