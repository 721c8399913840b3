"""The package as a whole: what it exports, its signatures, its stub."""

import ast
import inspect
import pathlib
import subprocess
import sys

import pytest

import lca
from lca import _lca

KNOBS = {"method": "lca", "group": 16, "window": 1024, "sink": 0, "summary_queries": 16, "summary": "streaming",
         "head_reduce": "mean", "semantic_pool": "weighted", "positional_pool": "select", "mass": "none",
         "positions": "token", "rope_frequencies": None, "rope_layout": "half", "scale": None, "cu_seqlens": None,
         "backend": "auto", "return_lse": False}


@pytest.mark.parametrize("function, tensors, others", [
    (lca.attention, "q k v", {}),
    (lca.mla_attention, "q_nope q_rope c k_rope w_uk w_uv", {"k_nope": None, "v": None})])
def test_knobs_are_keywords_with_the_defaults_of_preset_training(function, tensors, others):
    parameters = inspect.signature(function).parameters
    assert " ".join(name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD) == tensors
    keywords = {name: p.default for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    assert keywords == {**KNOBS, **others}
    assert {name: KNOBS[name] for name in _lca.setting_names()} == _lca.settings_preset("training")


def test_the_stub_names_what_the_binding_has():
    stub = ast.parse((pathlib.Path(lca.__file__).parent / "_lca.pyi").read_text(encoding="utf-8"))

    def names(body):
        return {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}

    public = {name for name in dir(_lca) if not name.startswith("_")}
    assert names(stub.body) == public
    for node in stub.body:
        if isinstance(node, ast.ClassDef):
            members = {name for name in vars(getattr(_lca, node.name)) if not name.startswith("_")}
            assert names(node.body) - {"__init__"} == members, node.name


def test_every_function_has_a_docstring():
    for name in lca.__all__:
        if name in ("Cache", "patch", "override", "unpatch", "reference"):
            pytest.importorskip("transformers")
        assert name == "__version__" or inspect.getdoc(getattr(lca, name)), name
    assert (pathlib.Path(lca.__file__).parent / "py.typed").exists()
    assert lca.__version__ == _lca.__version__


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'atention'"):
        lca.atention


def test_a_library_that_asks_for_cublas_is_told_from_one_that_does_not(tmp_path):
    from lca._libraries import needed, preload
    (tmp_path / "with.so").write_bytes(b"\x7fELF\0libcublasLt.so.13\0libc.so.6\0")
    (tmp_path / "without.so").write_bytes(b"\x7fELF\0libc.so.6\0")
    assert needed(tmp_path / "with.so") == "libcublasLt.so.13" and needed(tmp_path / "without.so") is None
    assert preload(tmp_path) is None


def test_a_process_has_one_cublas_whichever_is_imported_first():
    pytest.importorskip("torch")
    program = ("import lca, torch; print(len({line.split()[-1] for line in open('/proc/self/maps') "
               "if 'libcublasLt.so' in line}))")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 1
