"""The adapter that comes with a model's name. A tiny model and its adapter stand in for the real ones."""

import pathlib
import shutil

import pytest

import lca
from lca.engine import model_adapter

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "models"
TOKENS = [5, 17, 80, 3, 44, 21, 9, 60, 33, 2, 71, 14, 8, 50, 36, 27]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LCA_HOME", str(tmp_path))
    monkeypatch.setenv("LCA_MODELS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shutil.copy(GOLDEN / "gguf_llama_q4_1" / "model.gguf", tmp_path / "SmolLM2-135M-Instruct.Q4_1.gguf")
    folder = tmp_path / "smollm2-lca"
    folder.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(GOLDEN / "adapter_gguf_q4_1" / name, folder)
    (folder / "lca.json").write_text('{"group": 4, "window": 8}')
    return tmp_path


def total(name, **options):
    return lca.Engine(name, "cpu", precision="f32", **options).score(TOKENS).total


def test_it_is_used_with_the_name_and_method_lca(home):
    folder, file = home / "smollm2-lca", home / "SmolLM2-135M-Instruct.Q4_1.gguf"
    engine = lca.Engine("smollm2", "cpu", precision="f32")
    assert engine.info["adapter"] == str(folder) and engine.info["adapter_bytes"] > 0
    assert engine.settings[0]["group"] == 4
    assert total("smollm2") == total(file, adapter=folder)
    assert total("smollm2", adapter="none") == total(file) != total("smollm2")
    assert total("smollm2", method="dense") == total(file, method="dense")
    assert lca.Engine("smollm2", "cpu", method="dense").info["adapter"] == ""


def test_it_belongs_to_the_name_alone(home):
    assert model_adapter("smollm2") == str(home / "smollm2-lca")
    assert model_adapter(home / "SmolLM2-135M-Instruct.Q4_1.gguf") == ""
    shutil.rmtree(home / "smollm2-lca")
    assert model_adapter("smollm2") == ""
    assert total("smollm2") == total(home / "SmolLM2-135M-Instruct.Q4_1.gguf")
