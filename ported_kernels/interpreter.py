"""The CPU device: Triton's interpreter, entered at launch time and corrected where it computes wrongly.

Triton's own switch, TRITON_INTERPRET=1 before the first import, makes a whole process an interpreted one.
Here a kernel stays an ordinary `@triton.jit` function; inside `interpreted()` its launches run in numpy, with
the helpers it calls, whatever module they are in; outside, the same kernel compiles for a real device. That
costs two patches of `JITFunction` (a launch, a call from another kernel) and those the interpreter makes in
`triton.language` itself; all are taken back on leaving.

What differs from the interpreter of Triton 3.2:
- it keeps bfloat16 values as bit patterns in uint16 and multiplies, adds and compares the patterns. Here
  they are decoded to float32 first, and results rounded to nearest even (it truncates);
- numpy 2.4 and later work;
- `tl.gather`, which triton-ascend adds, is there;
- a product may have sides of 1, as on Ascend (a GPU's smallest has 16);
- an address outside the storage of every tensor of the launch raises `OutOfBounds` instead of reading it;
- keyword arguments that are launch options (num_warps, multibuffer, ...) are dropped, as they mean nothing here;
- more than 65,535 programs are refused, as Ascend's launcher does.
What it still does not model: undefined masked lanes, DMA windows, the order of programs, the number of cores.
"""
from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

MAX_PROGRAMS = 65_535     # Ascend: "coreDim can't be greater than UINT16_MAX"
_lock = threading.RLock()  # the interpreter's grid position and patches are global to the process
_depth = 0


class OutOfBounds(Exception):
    """A kernel addressed memory that belongs to no tensor of its launch."""


def unusable() -> str | None:
    """Why this environment has no interpreter, or None when it has one."""
    try:
        import triton.runtime.interpreter  # noqa: F401
    except ImportError as error:
        return (f"Triton's interpreter cannot be imported ({error}); "
                "install it with: pip install 'triton-ascend-migrate[cpu]'")
    return None


def recording() -> bool:
    """Something that is neither Triton nor this module stands in for `JITFunction.run`."""
    from triton.runtime.jit import JITFunction

    return JITFunction.run.__module__ not in ("triton.runtime.jit", __name__)


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Inside, launches of `@triton.jit` kernels run in the interpreter; also when modules are imported that
    need a driver at import (`@triton.autotune` asks for one).

    Leaves everything alone when something else stands in for `JITFunction.run`: whoever records launches
    (the compile gate) wants them, not their results.
    """
    global _depth

    with _lock:
        if recording():
            yield
            return
        _depth += 1
        try:
            with contextlib.ExitStack() as stack:
                if _depth == 1:
                    stack.enter_context(_patched())
                yield
        finally:
            _depth -= 1


@contextlib.contextmanager
def _patched() -> Iterator[None]:
    import torch
    import triton.language as tl
    from triton.runtime import driver
    from triton.runtime import interpreter as its
    from triton.runtime.jit import JITFunction

    holders: list[Any] = [tl, tl.core, tl.math, tl.core.tensor, tl.core.dtype, driver, its, JITFunction]
    before = [dict(vars(holder)) for holder in holders]
    functions = its.interpreter_builder.codegen_fns
    smallest_dot = functions.get("min_dot_size")
    undo = contextlib.ExitStack()
    try:
        functions["min_dot_size"] = lambda lhs, rhs: (1, 1, 1)
        its.interpreter_builder.__class__ = _builder_class()   # every rewritten kernel holds this object
        its.GridExecutor = _Launch
        JITFunction.run = _run
        JITFunction.__call__ = _call
        driver.set_active(OfflineDriver())
        if not hasattr(torch, "npu"):
            # FLA's modules ask torch for the module that bears the name of the driver's backend.
            setattr(torch, "npu", torch.cpu)        # noqa: B010  torch declares no such module
            undo.callback(delattr, torch, "npu")
        if hasattr(its, "_patch_lang"):
            # It walks triton.language on each call of each helper; once is enough, and takes milliseconds.
            its._patch_lang(_names_the_language(tl))
            its._patch_lang = _already_patched
            # It takes int() of an array of one element, which numpy warns of until 2.3 and refuses from 2.4.
            tl.core.tensor.__index__ = lambda self: self.handle.data.item()
        with np.errstate(all="ignore"):     # kernels overflow to inf and mask it later, as on a device
            yield
    finally:
        undo.close()
        functions["min_dot_size"] = smallest_dot
        for holder, names in zip(holders, before, strict=True):
            for name in vars(holder).keys() - names.keys():
                delattr(holder, name)
            for name, value in names.items():
                if vars(holder).get(name) is not value:
                    if isinstance(vars(holder), MappingProxyType):
                        setattr(holder, name, value)
                    else:
                        vars(holder)[name] = value


def _names_the_language(tl: Any) -> Callable[[], None]:
    """A function whose globals hold what `_patch_lang` looks for."""
    namespace = {"tl": tl, "core": tl.core}
    exec("def names(): pass", namespace)
    return namespace["names"]


class _AlreadyPatched:
    """What later interpreters expect back from `_patch_lang`: a scope to leave."""

    def restore(self) -> None:
        pass


def _already_patched(fn: object, *rest: object) -> _AlreadyPatched:
    return _AlreadyPatched()


@cache
def _interpreted_function(fn: Callable) -> Any:
    from triton.runtime.interpreter import InterpretedFunction

    return InterpretedFunction(fn)


def _run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
    """Stands in for `JITFunction.run`: autotune and heuristics end here, too."""
    if not warmup:
        kwargs = {name: value for name, value in kwargs.items() if name in self.arg_names}
        _Launch(_interpreted_function(self.fn).rewrite(), self.arg_names, grid)(*args, **kwargs)


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Stands in for `JITFunction.__call__`: a kernel calls a helper."""
    return _interpreted_function(self.fn)(*args, **kwargs)


class _Launch:
    """One launch: binds the arguments, notes which memory they own, runs the programs one after another."""

    def __init__(self, fn: Callable, arg_names: list[str], grid: Any, *rest: object) -> None:
        self.fn, self.arg_names, self.grid = fn, arg_names, grid

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        from triton.runtime import interpreter as its
        from triton.runtime.errors import InterpreterError
        from triton.runtime.jit import _normalize_ty

        kwargs = {name: value for name, value in kwargs.items() if name in self.arg_names}
        bound = inspect.getcallargs(self.fn, *args, **kwargs)
        types = {name: _normalize_ty(ty) for name, ty in self.fn.__annotations__.items()}
        values = {name: getattr(value, "value", value) if types.get(name) == "constexpr"
                  else its._implicit_cvt(value) for name, value in bound.items()}
        grid = tuple(int(n) for n in (self.grid(bound) if callable(self.grid) else self.grid))
        nx, ny, nz = grid + (1,) * (3 - len(grid))
        if nx * ny * nz > MAX_PROGRAMS:
            raise ValueError(f"grid: expected at most {MAX_PROGRAMS} programs, got {nx * ny * nz} {grid}")
        builder = its.interpreter_builder
        builder.extents = [extent for name, value in bound.items() if (extent := _extent(name, value))]
        builder.set_grid_dim(nx, ny, nz)
        try:
            for x in range(nx):
                for y in range(ny):
                    for z in range(nz):
                        builder.set_grid_idx(x, y, z)
                        self.fn(**values)
        except Exception as error:
            if bounds := _cause(error, OutOfBounds):
                raise OutOfBounds(f"{self.fn.__name__}, program {builder.grid_idx}: {bounds}") from None
            raise InterpreterError(f"{self.fn.__name__}, program {builder.grid_idx}: {error!r}") from error
        finally:
            builder.extents = None


def _extent(name: str, value: Any) -> tuple[str, int, int] | None:
    tensor = getattr(value, "base", value) if type(value).__name__ == "TensorWrapper" else value
    if not hasattr(tensor, "untyped_storage"):
        return None
    storage = tensor.untyped_storage()
    return name, storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _cause(error: BaseException | None, kind: type[Exception]) -> BaseException | None:
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error


def decode_bfloat16(bits: np.ndarray) -> np.ndarray:
    """uint16 bit patterns -> the float32 values they stand for."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def encode_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 -> uint16 bit patterns of bfloat16, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


@cache
def _builder_class() -> type:
    import triton.language as tl
    from triton.runtime import interpreter as its

    def decoded(handle: Any) -> np.ndarray:
        return decode_bfloat16(handle.data) if is_bfloat16(handle) else handle.data

    def is_bfloat16(handle: Any) -> bool:
        return handle.dtype.scalar == tl.bfloat16 and handle.data.dtype == np.uint16

    def encoded(values: np.ndarray) -> Any:
        if values.dtype == np.bool_:     # a comparison
            return its.TensorHandle(values, tl.int1)
        return its.TensorHandle(encode_bfloat16(values), tl.bfloat16)

    class CorrectedBuilder(its.InterpreterBuilder):
        extents: list[tuple[str, int, int]] | None = None

        def get_bf16(self, value: float) -> Any:
            return its.TensorHandle(encode_bfloat16(np.array([value], dtype=np.float32)), tl.bfloat16)

        def cast_impl(self, src: Any, dst_type: Any) -> Any:
            if dst_type.scalar == tl.bfloat16:
                return encoded(decoded(src).astype(np.float32))
            if is_bfloat16(src):
                return its.TensorHandle(decoded(src).astype(its._get_np_dtype(dst_type)), dst_type.scalar)
            return super().cast_impl(src, dst_type)

        def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
            if is_bfloat16(lhs):
                return encoded(op(decoded(lhs), decoded(rhs)))
            return super().binary_op(lhs, rhs, op)

        def unary_op(self, arg: Any, op: Any) -> Any:
            return encoded(op(decoded(arg))) if is_bfloat16(arg) else super().unary_op(arg, op)

        def create_fma(self, x: Any, y: Any, z: Any) -> Any:
            if is_bfloat16(z):
                return encoded(decoded(x) * decoded(y) + decoded(z))
            return super().create_fma(x, y, z)

        def create_clampf(self, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
            if is_bfloat16(arg):
                return encoded(np.clip(decoded(arg), decoded(lo), decoded(hi)))
            return its.TensorHandle(np.clip(arg.data, lo.data, hi.data), arg.dtype.scalar)

        def create_dot(self, a: Any, b: Any, d: Any, *precision: Any) -> Any:
            if is_bfloat16(a):     # the products of bfloat16 values are exact in float32
                a, b = (its.TensorHandle(decoded(operand), tl.float32) for operand in (a, b))
            return super().create_dot(a, b, d, *precision)

        def create_gather(self, src: Any, index: Any, axis: int) -> Any:
            return its.TensorHandle(np.take_along_axis(src.data, index.data, axis), src.dtype.scalar)

        def create_masked_load(self, ptrs: Any, mask: Any, *rest: Any) -> Any:
            self.check(ptrs, mask)
            return super().create_masked_load(ptrs, mask, *rest)

        def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
            self.check(ptrs, mask)
            return super().create_masked_store(ptrs, value, mask, *rest)

        def create_atomic_rmw(self, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
            if is_bfloat16(val):
                raise NotImplementedError("atomics on bfloat16 are not modelled on the CPU")
            self.check(ptr, mask)
            return super().create_atomic_rmw(op, ptr, val, mask, *rest)

        def check(self, ptrs: Any, mask: Any) -> None:
            """Every address of a load, store or atomic lies in one tensor of the launch."""
            addresses = ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape)]
            if self.extents is None or addresses.size == 0:
                return
            size = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
            low, high = int(addresses.min()), int(addresses.max()) + size
            if not any(start <= low and high <= end for _, start, end in self.extents):
                name, start, end = min(self.extents, key=lambda e: min(abs(low - e[1]), abs(high - e[2])))
                raise OutOfBounds(f"bytes {low - start}..{high - start} from the start of {name}, which has "
                                  f"{end - start}, lie in no tensor of the launch")

    return CorrectedBuilder


class OfflineDriver:
    """Answers what Triton asks a driver where there is none. Times nothing: the first configuration wins."""

    class utils:
        @staticmethod
        def get_device_properties(device: object) -> dict[str, int]:
            return {"max_shared_mem": 1, "num_aicore": 24, "num_vectorcore": 48}

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("npu", "Ascend910B2", 0)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: object) -> int:
        return 0

    def get_benchmarker(self) -> Callable[..., list[float]]:
        return lambda call, quantiles=None, **options: [1.0, 1.0, 1.0]

    def get_device_interface(self) -> Any:
        return sys.modules["torch"].cpu     # a tensor came here, so torch is loaded
