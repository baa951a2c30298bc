"""Every operator of the catalogue refuses what does not fit, with one ValueError and before anything is launched.

The bad arguments are made from the declarations and from cases, so no port needs to have been made. Where two
arguments contradict each other, the error names the one that is checked later: here, one that shares an axis with what
was changed.
"""
import re
from dataclasses import replace

import pytest
import torch

import ported_kernels
from migrate.verify.trial import storage_bytes
from ported_kernels import catalog
from ported_kernels.arguments import FLOATS
from ported_kernels.signature import (
    DTYPE,
    F32,
    FLAG,
    INTEGERS,
    NUMBER,
    Integer,
    Packed,
    Several,
    Signature,
    Tensor,
    Value,
    power_of_two,
)

OPERATORS = catalog.operators()
PORTS = [one for one in OPERATORS.values() if one.port]
KDA = dict.fromkeys(("gate", "key", "w"), Tensor("B T H_TOTAL K"))
BY_HAND = {     # their checks are their own; this is what their axes are
    "bwd_segsum_dadt": {"dSSdA": Tensor("B H N C C"), "SSdA": Tensor("B H N C C"), "ddt_out": Tensor("B H N*C")},
    "mamba3_siso_bwd_dzdo": dict.fromkeys(("do", "z", "o"), Tensor("B T H D")),
    "kda_split_state_summary": {**KDA, "u": Tensor("B T H_TOTAL V", FLOATS)},
    "kda_state_transition": KDA,
    "kda_state_grad_ext": {"query": KDA["key"], **KDA, "grad_output": Tensor("B T H_TOTAL V"),
                           "grad_value": Tensor("B T H_TOTAL V")}}


def declared(operator):
    return operator.signature.arguments if operator.signature else BY_HAND[operator.name]


def tensors(operator):
    """{argument: declaration}, those of a tuple as "Initial_States[0]"."""
    found = {}
    for name, one in declared(operator).items():
        if isinstance(one, Several):
            found |= {f"{name}[{i}]": part for i, part in enumerate(one.parts)}
        elif isinstance(one, Packed):
            found[name] = Tensor("S+1", INTEGERS, one.optional)
        elif isinstance(one, Tensor):
            found[name] = one
    return found


def get(inputs, name):
    base, _, number = name.rstrip("]").partition("[")
    value = inputs.get(base)
    return value[int(number)] if number and value is not None else value


def changed(inputs, name, value):
    base, _, number = name.rstrip("]").partition("[")
    if number:
        value = tuple(value if i == int(number) else one for i, one in enumerate(inputs[base]))
    return inputs | {base: value}


def with_argument(operator, name):
    """The inputs of the first case that gives a tensor for it, without gradients of outputs."""
    for case in operator.cases:
        inputs = case.build(0, torch.float32)
        if isinstance(get(inputs, name), torch.Tensor):
            return {name: value for name, value in inputs.items() if name not in operator.gradients}
    raise AssertionError(f"no case of {operator.name} gives {name}")


def symbols(dims):
    """The sizes in axes."""
    return set(re.findall(r"[A-Za-z]\w*", dims))


def relatives(operator, name):
    """The arguments that share a size with it."""
    own = symbols(tensors(operator)[name].dims)
    if isinstance(declared(operator).get(name), Packed):
        own |= {"N"}        # the number of sequences says that of their chunks
    return {other for other, one in tensors(operator).items() if symbols(one.dims) & own}


@pytest.fixture
def refusal(monkeypatch, launches):
    """What a call is refused with; nothing may be loaded, launched or changed on the way."""
    monkeypatch.setattr(catalog, "_imported", lambda *_: pytest.fail("the arguments were let through"))

    def call(operator, inputs):
        function = operator.function if operator.port else getattr(ported_kernels, operator.name)
        flat = [one for value in inputs.values() for one in (value if isinstance(value, tuple) else (value,))]
        held = [one for one in flat if isinstance(one, torch.Tensor) and one.device.type != "meta"]
        before = [storage_bytes(one) for one in held]
        with pytest.raises(ValueError, match=r"^[\w\[\]]+: expected .+, got ") as refused:
            function(**inputs)
        assert not launches
        assert all(torch.equal(one, storage_bytes(value)) for one, value in zip(before, held, strict=True))
        message = str(refused.value)
        assert "\n" not in message
        return message
    return call


def named(message):
    return message.partition(": ")[0]


ARGUMENTS = [pytest.param(operator, name, id=f"{operator.name}-{name}")
             for operator in OPERATORS.values() for name in tensors(operator)]


@pytest.mark.parametrize("operator, name", ARGUMENTS)
def test_a_bad_tensor_is_refused(operator, name, refusal):
    inputs = with_argument(operator, name)
    value, want = get(inputs, name), tensors(operator)[name]

    message = refusal(operator, changed(inputs, name, [1.0]))
    assert message.startswith(f"{name}: expected a tensor of shape [") and message.endswith("], got list")
    if not want.optional and "[" not in name:
        assert named(refusal(operator, changed(inputs, name, None))) == name

    message = refusal(operator, changed(inputs, name, value[:0]))
    assert message.startswith(f"{name}: expected a tensor [") and "with elements, got the empty shape (0" in message

    wrong = value.float() if want.dtypes == INTEGERS else value.to(torch.int8)
    message = refusal(operator, changed(inputs, name, wrong))
    assert named(message) == name and message.endswith(f"got {str(wrong.dtype)[6:]}")

    assert refusal(operator, changed(inputs, name, value.to("meta"))) == \
        f"{name}: expected a tensor on npu, cuda, cpu, got device 'meta'"


@pytest.mark.parametrize("operator, name", ARGUMENTS)
def test_a_wrong_shape_is_refused(operator, name, refusal):
    inputs = with_argument(operator, name)
    value, own = get(inputs, name), tensors(operator)[name]
    kin = relatives(operator, name)
    given = {other: one for other, one in tensors(operator).items() if isinstance(get(inputs, other), torch.Tensor)}

    if not own.dims.startswith("*") or "z" in inputs:
        message = refusal(operator, changed(inputs, name, value.unsqueeze(0)))
        assert named(message) in kin

    said = {symbol for other, one in given.items() if other != name for symbol in symbols(one.dims)}
    said |= {one.size for one in declared(operator).values() if isinstance(one, Integer)}
    plain = {size for other, one in given.items() if other != name for axis in one.dims.split()
             for size in axis.split("%")}
    axes = next(dims.split() for dims in own.dims.split("|") if "*R" in dims or len(dims.split()) == value.dim())
    tried = 0
    for axis, dims in enumerate(reversed(axes), 1):
        if not symbols(dims) & said or dims == "*R":
            continue
        # Where only a quotient of the size is known elsewhere, one more may make no difference.
        more = 1 if dims.isidentifier() is False or dims in plain else value.shape[-axis]
        longer = torch.cat((value, value.narrow(-axis, 0, more)), -axis)
        message = refusal(operator, changed(inputs, name, longer))
        assert named(message) in kin | {"chunk_size", "group_size"}, message
        tried += 1
    assert tried or own.dims == "S+1" or len(given) <= 2, "no axis was tried"


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.name)
def test_devices_that_differ_are_refused(operator, refusal, monkeypatch):
    """There is one device here, so another is made up: meta, let through as if it had kernels."""
    monkeypatch.setattr("ported_kernels.arguments.DEVICES", ("cpu", "meta"))
    for name in tensors(operator):
        inputs = with_argument(operator, name)
        there = [other for other in tensors(operator) if isinstance(get(inputs, other), torch.Tensor)]
        if len(there) > 1:
            message = refusal(operator, changed(inputs, name, get(inputs, name).to("meta")))
            assert re.fullmatch(r".+: expected the device of .+, (cpu, got meta|meta, got cpu)", message)
            assert name in message


BAD_VALUES = {FLAG: (1, "yes", None), DTYPE: ("float32", torch.int32), NUMBER: ("1e-5", None, True)}


@pytest.mark.parametrize("operator", PORTS, ids=lambda operator: operator.name)
def test_a_bad_value_is_refused(operator, refusal):
    inputs = {name: value for name, value in operator.cases[0].build(0, torch.float32).items()
              if name not in operator.gradients}
    for name, one in declared(operator).items():
        bad = BAD_VALUES.get(one, ("yes",)) if isinstance(one, Value) else ()
        if isinstance(one, Integer):
            bad = (0, -16, "16", 16.0, True) + (() if one.optional else (None,)) + ((12,) if one.power_of_two else ())
        if isinstance(one, Several):
            bad = (torch.zeros(3), (torch.zeros(3),))
        for value in bad:
            message = refusal(operator, inputs | {name: value})
            assert named(message) == name


def test_chunk_sizes_of_operators_written_by_hand(refusal):
    inputs = OPERATORS["bwd_segsum_dadt"].cases[0].build(0, torch.float32)
    for size in (0, 7, "8", None):
        assert named(refusal(OPERATORS["bwd_segsum_dadt"], inputs | {"chunk_size": size})) == "chunk_size"


def inputs_of(name, case=0, **changes):
    operator = catalog.get(name)
    built = (operator.cases[case] if isinstance(case, int) else operator.case(case)).build(0, torch.float32)
    return operator, built | changes


@pytest.mark.parametrize("name, case, change, message", [
    ("compute_dqkv", 2, lambda x: {"v": x["v"][:, :36]},
     "v: expected shape [B, T, H%G, V] = (2, 37, 4, 20), T of q, got (2, 36, 4, 20)"),
    ("compute_dqkv", 2, lambda x: {"SSM_States": x["SSM_States"][..., :71]},
     "SSM_States: expected shape [B, H, V, N*K] = (2, 4, 20, 72), K of q, N of q, got (2, 4, 20, 71)"),
    ("compute_dqkv", 2, lambda x: {"k": x["k"].bfloat16()}, "k: expected the dtype of q, float32, got bfloat16"),
    ("compute_dqkv", 2, lambda x: {"v": x["v"][:, :, :3]},
     "v: expected H a multiple of G = 2, of q, got H = 3"),
    ("compute_dqkv", 2, lambda x: {"Cu_Seqlens": torch.tensor([0, 37])},
     "q: expected B = 1, as Cu_Seqlens is given, got B = 2"),
    ("compute_dqkv", "packed", lambda x: {"Cu_Seqlens": x["Cu_Seqlens"][:1]},
     "Cu_Seqlens: expected two places or more [S+1]: where sequences begin and end, got shape (1,)"),
    ("compute_dzdo", 1, lambda x: {name: value[..., :48] for name, value in x.items()},
     "do: expected a head dimension that is a power of two, got 48"),
    ("compute_dqktheta", 1, lambda x: {"angles": torch.zeros(2, 37, 4, 13)},
     "angles: expected at most K/2 = 12 angles, got 13"),
    ("mamba3_siso_fwd", 1, lambda x: {"Angles": torch.zeros(2, 37, 4, 7)},
     "Angles: expected an even number of angles, at most K/2 = 12, got 7"),
    ("compute_ddt_dtrap_dinput_states", 5, lambda x: {"input_v_state": None},
     "input_v_state: expected a tensor, as d_issm_state is given, got None"),
    ("bwd_dadt_fused_triton", 1, lambda x: {"dA_cs": x["dA_cs"].mT.contiguous().mT},
     "dA_cs: expected a contiguous tensor, got strides (144, 1, 3)"),
    ("compute_dacs_segsum_triton", 1, lambda x: {"da": x["da"][..., :47]},
     "da: expected T a multiple of C = 16, of chunk_size, got T = 47"),
    ("_chunk_scan_bwd_dcb", 0, lambda x: {"seq_idx": torch.zeros(2, 37, dtype=torch.int32)},
     "CB: expected None, as seq_idx is given, got a tensor"),
    ("_bmm_chunk_fwd", 0, lambda x: {"b": x["b"][:, :, None]},
     "b: expected 3 dimensions [B, T, K], got shape (2, 37, 1, 24)"),
    ("_bmm_chunk_bwd", 4, lambda x: {"out": torch.zeros(2, 37, 3, 48)[..., ::2]},
     "out: expected a stride of 1 along T or K, got strides (5328, 144, 48, 2)"),
    ("_state_passing_fwd", 0, lambda x: {"seq_idx": torch.zeros(2, 37, dtype=torch.int32)},
     "chunk_size: expected an integer, as seq_idx is given, got None"),
    ("_state_passing_bwd", "views with gaps", lambda x: {"states_dtype": torch.bfloat16},
     "states: expected memory without gaps, as they are to be converted, got strides (1965, 393, 131, 2)"),
    ("_layer_norm_fwd", 1, lambda x: {"group_size": 7}, "group_size: expected a divisor of N = 72, of x, got 7"),
    ("_layer_norm_fwd", 1, lambda x: {"x": x["x"].mT.contiguous().mT},
     "x: expected a last stride of 1, got strides (1, 19)"),
    ("_layer_norm_fwd", 0, lambda x: {name: torch.zeros(1, 16385) if name in ("x", "z") else torch.zeros(16385)
                                      for name in ("x", "weight", "bias")} | {"group_size": None},
     "group_size: expected at most 16384 columns of torch.float32, got 16385"),
    ("_layer_norm_bwd", 1, lambda x: {"mean": None}, "mean: expected a tensor, as is_rms_norm is False, got None"),
    ("selective_state_update", 2, lambda x: {"state": x["state"][:2]},
     "state: expected a state for each of B = 3 rows of x, got S = 2"),
    ("selective_state_update", 2, lambda x: {"state": x["state"][:1].expand(3, -1, -1, -1)},
     "state: expected memory of its own for every element, got strides (0, 480, 24, 1)"),
    ("selective_state_update", 2, lambda x: {"D": None}, "D: expected a tensor of shape [H, P], got NoneType"),
    ("chunk_scan", 0, lambda x: {name: value[:, :47] for name, value in x.items() if name in ("B", "C", "x")},
     "x: expected T a multiple of C = 16, of dt, got T = 47"),
])
def test_what_is_said(name, case, change, message, refusal):
    operator, inputs = inputs_of(name, case)
    inputs = {name: value for name, value in (inputs | change(inputs)).items() if name not in operator.gradients}
    assert refusal(operator, inputs) == message


@pytest.mark.parametrize("operator", PORTS, ids=lambda operator: operator.name)
def test_every_case_is_let_through(operator, monkeypatch):
    """To the function, as it came, once."""
    came = []
    monkeypatch.setattr(catalog, "_imported", lambda one, device: lambda **given: came.append((one, device, given)))
    for dtype in operator.dtypes:
        for case in operator.cases:
            inputs = {name: value for name, value in case.build(0, dtype).items() if name not in operator.gradients}
            operator.function(**inputs)
            ((one, device, given),) = came
            assert one is operator and device == "cpu" and given.keys() == inputs.keys()
            assert all(given[name] is value for name, value in inputs.items())
            came.clear()


def test_operators_are_importable_by_name(tmp_path, monkeypatch):
    for name, operator in OPERATORS.items():
        function = getattr(ported_kernels, name)
        assert function is getattr(ported_kernels, name) and function.__name__ == name
        if operator.port:
            assert operator.upstream.path in function.__doc__
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = ported_kernels.nope
    with pytest.raises(TypeError, match="missing a required argument: 'z'"):
        ported_kernels.compute_dzdo(torch.zeros(1, 1, 1, 1))
    elsewhere = tmp_path / "generated"
    monkeypatch.setattr(catalog, "GENERATED", elsewhere)
    missing = replace(OPERATORS["compute_dzdo"], wrapper=f"{elsewhere / 'gone.py'}:compute_dzdo")
    with pytest.raises(catalog.NotPorted, match=r"migrate port mamba-ssm==.*:mamba_ssm/ops/triton/mamba3/"):
        missing.function(*(torch.zeros(1, 1, 1, 1) for _ in range(3)))


def test_the_language_of_axes():
    signature = Signature({"x": Tensor("*R N"), "n": Integer("L", optional=True, divides="N"),
                           "y": Tensor("*R N*2+1"), "z": Tensor("N/L", F32)})
    assert power_of_two(64) and not power_of_two(48)
    x, y = torch.zeros(2, 3, 6), torch.zeros(2, 3, 13)
    assert signature.check({"x": x, "n": 4 - 1, "y": y, "z": torch.zeros(2)}) == torch.device("cpu")
    assert signature.check({"x": x, "n": None, "y": y, "z": torch.zeros(1)}) == torch.device("cpu")
    for given, message in (
            ({"y": y[..., 1:]}, "y: expected shape [R0, R1, N*2+1] = (2, 3, 13), N of x, got (2, 3, 12)"),
            ({"y": y[0]}, "y: expected 3 dimensions [R0, R1, N*2+1], got shape (3, 13)"),
            ({"z": torch.zeros(2).half()}, "z: expected float32, got float16")):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            signature.check({"x": x, "n": 3, "y": y, "z": torch.zeros(2)} | given)
    assert set(FLOATS) == set(catalog.get("compute_dqkv").dtypes)
