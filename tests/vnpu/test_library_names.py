"""Which library functions there are handlers for, and that each of them has a test of its values."""
from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from migrate.vnpu.library import Unknown, find

HERE = Path(__file__).parent

# called in the final HIVM (bishengir-compile 1.2.0) of the kernels of mamba-ssm 2.3.2.post1's ports and of our own
# operators, as the gate's and the catalogue's cases launch them
IN_MAMBA = (HERE / "library_names.txt").read_text().split()

# what the value tests call, by name: each name is a parameter of one of them
TESTED = {name for file in sorted(HERE.glob("test_library_*.py")) if file.stem != "test_library_names"
          for name in importlib.import_module(file.stem).COVERED}


def test_every_function_in_mamba_has_a_handler_and_a_value_test() -> None:
    assert len(IN_MAMBA) > 120
    assert not set(IN_MAMBA) - TESTED
    for name in IN_MAMBA:
        assert callable(find(name))


def test_everything_tested_has_a_handler() -> None:
    assert len(TESTED) > 800
    for name in TESTED:
        assert find(name) is find(name)      # and it is looked up once


@pytest.mark.parametrize("name", ["vfrobnicate_1d_float", "vadd_1d_floats", "vadd_4_float", "xvadd_1d_float", "",
                                  "fixpipe_nz2nd_float_to_float_2d_to_2d", "print_1d_float_gm", "sync_block_lock"])
def test_an_unknown_function_stops_with_its_name(name: str) -> None:
    with pytest.raises(Unknown, match=f"no handler for the library function '{name}'") as unknown:
        find(name)
    assert unknown.value.name == name
