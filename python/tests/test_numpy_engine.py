"""The engine beside numpy alone, as a wheel in a clean environment has it: tiny checkpoints of all kinds."""

import json

import numpy
import pytest
from conftest import GOLDEN, difference

import lca

MODELS = GOLDEN / "models"


def read_safetensors(path):
    """All tensors of a small file."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    kinds = {"F32": numpy.float32, "I32": numpy.int32}
    tensors = {}
    for name, entry in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            array = numpy.frombuffer(data[begin + first:begin + last], kinds[entry["dtype"]])
            tensors[name] = array.reshape(entry["shape"])
    return tensors


@pytest.mark.parametrize("name", ["llama", "qwen2", "minicpm3", "deepseek_v2", "gguf_llama_q4_0"])
def test_a_checkpoint_gives_the_logits_of_its_own_implementation(name):
    golden = read_safetensors(MODELS / name / "golden.safetensors")
    path = MODELS / name
    path = path / "model.gguf" if name.startswith("gguf") else path
    engine = lca.Engine(path, "cpu", precision="f32", method="dense")
    logits = engine.logits(golden["tokens"].tolist())
    assert logits.dtype == numpy.float32 and difference(logits, golden["logits"]) < 2e-3


def test_a_session_condenses_and_goes_on():
    engine = lca.Engine(MODELS / "llama", "cpu", precision="f32", group=4, window=8)
    tokens = read_safetensors(MODELS / "llama" / "golden.safetensors")["tokens"].tolist()
    session = engine.session().read(tokens[:50])
    for token in tokens[50:]:
        session.append(token)
    assert session.cache_bytes < session.dense_bytes
    assert difference(session.logits(), engine.logits(tokens)[-1]) < 1e-3
