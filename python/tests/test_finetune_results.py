"""What lca.finetune leaves: an adapter and a model for transformers, PEFT and the engine; sharded runs; the docs."""

import json
import os
import shutil
import socket
import subprocess
import sys

import numpy
import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
pytest.importorskip("accelerate")
yaml = pytest.importorskip("yaml")
import finetune_parts as parts  # noqa: E402
from conftest import difference  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from test_finetune import PACKAGE, rows_of  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

import lca  # noqa: E402
from lca.finetune import config_parse, finetune  # noqa: E402
from lca.finetune.reading import RECIPES  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return parts.make(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def adapter(folder, tmp_path_factory):
    """A run of six steps with a rate that changes the logits visibly."""
    output = tmp_path_factory.mktemp("adapter") / "run"
    content = parts.settings(folder, output, optimizer={"rate": 0.05, "warmup": 1}, attention={"summary_queries": 5})
    content["stages"][1]["positions"] = "entry"
    return finetune(config_parse(content)).folder


def ids_of(count=200):
    return torch.randint(0, 255, (1, count), generator=torch.Generator().manual_seed(8))


def test_an_adapter_says_the_same_in_peft_and_in_the_engine(folder, adapter):
    ids = ids_of()
    base = AutoModelForCausalLM.from_pretrained(folder / "base").eval()
    with torch.no_grad():
        untouched = base(ids).logits[0].numpy()
        model = peft.PeftModel.from_pretrained(base, adapter).eval()
        settings = json.loads((adapter / "lca.json").read_text())
        lca.patch(model, **settings)
        ours = model(input_ids=ids, use_cache=False).logits[0].numpy()
    engine = lca.Engine(folder / "base", "cpu", adapter=adapter, precision="f32")
    theirs = engine.logits(ids[0].tolist())
    assert difference(ours, theirs) < 1e-3
    assert difference(ours, untouched) > 0.05
    for layer in engine.settings:
        assert (layer["method"], layer["group"], layer["window"], layer["sink"]) == ("lca", 4, 64, 2)
        assert layer["positions"] == "entry" and layer["summary_queries"] == 5
    bare = lca.Engine(folder / "base", "cpu", precision="f32", method="dense").logits(ids[0].tolist())
    assert difference(bare, untouched) < 1e-3


def test_an_adapter_is_a_peft_folder_in_bf16(folder, adapter):
    assert sorted(each.name for each in adapter.iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors", "lca.json"]
    tensors = load_file(adapter / "adapter_model.safetensors")
    assert len(tensors) == 2 * 7 * 2 and {value.dtype for value in tensors.values()} == {torch.bfloat16}
    assert (adapter / "adapter_model.safetensors").stat().st_mode & 0o044 == 0o044
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(config["target_modules"])  # the same file from every run
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (4, 8, 0.0)
    assert config["base_model_name_or_path"] == str(folder / "base") and config["inference_mode"]


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_of_full_weights_says_the_same_in_the_engine(folder, tmp_path, tied):
    parts.tiny_llama(3, tied).save_pretrained(tmp_path / "base")
    content = parts.settings(folder, tmp_path / "run", lora=None, model=str(tmp_path / "base"),
                             optimizer={"rate": 0.005, "warmup": 1})
    content["stages"] = content["stages"][1:]
    before = {path: path.read_bytes() for path in (tmp_path / "base").iterdir()}
    result = finetune(config_parse(content))
    assert all(path.read_bytes() == content for path, content in before.items())
    model = AutoModelForCausalLM.from_pretrained(result.folder).eval()
    assert model.config.lca["group"] == 4 and model.config.lca["sink"] == 2
    lca.patch(model)
    ids = ids_of()
    with torch.no_grad():
        ours = model(ids, use_cache=False).logits[0].numpy()
        changed = lca.patch(parts.tiny_llama(3, tied).eval(), **model.config.lca)(ids).logits[0].numpy()
    theirs = lca.Engine(result.folder, "cpu", precision="f32").logits(ids[0].tolist())
    assert difference(ours, theirs) < 1e-3
    assert difference(ours, changed) > 0.02
    again = finetune(config_parse(content))  # a run that has ended writes its result again
    assert (again.steps, again.tokens) == (result.steps, result.tokens)


def test_a_run_in_bf16_trains_float32_weights(folder, tmp_path):
    """What a GPU does, on the CPU: autocast, frozen weights in bf16. In a process of its own: precision is global."""
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(parts.settings(folder, tmp_path / "run", precision="bf16")))
    finetune(config_parse(parts.settings(folder, tmp_path / "exact")))
    done = subprocess.run([sys.executable, "-m", "lca.finetune", str(path)], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(PACKAGE)})
    assert done.returncode == 0 and done.stderr == "", done.stderr[-3000:]  # no warnings of libraries either
    half, exact = (rows_of(tmp_path / name / "log.csv") for name in ("run", "exact"))
    for one, other in zip(half, exact, strict=True):
        assert one["text"] != other["text"] and numpy.isclose(float(one["text"]), float(other["text"]), rtol=0.01)
    state = torch.load(tmp_path / "run/checkpoints/step-00000006/state.pt", weights_only=True)
    assert {value.dtype for value in state["model"].values()} == {torch.float32}


def free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def launch(path):
    """Two processes on the CPU, with the environment accelerate makes of the file that ships."""
    options = yaml.safe_load((RECIPES / "fsdp2.yaml").read_text())
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                   "ACCELERATE_USE_CPU": "true", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                   "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true"}
    environment.update({name.upper(): str(value) for name, value in options["fsdp_config"].items()})
    running = [subprocess.Popen([sys.executable, "-m", "lca.finetune", str(path), "--json"], text=True,
                                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
    told = [each.communicate(timeout=300) for each in running]
    for each, (_, errors) in zip(running, told):
        assert each.returncode == 0, errors[-3000:]
    return [json.loads(line) for line in told[0][0].splitlines() if line.startswith("{")]


def test_the_file_for_fsdp2_is_one_of_accelerate():
    from accelerate.commands.config.config_args import load_config_from_file
    found = load_config_from_file(str(RECIPES / "fsdp2.yaml"))
    assert str(found.distributed_type).endswith("FSDP") and found.fsdp_config["fsdp_version"] == 2


def test_two_sharded_processes_go_on_as_one_would(folder, tmp_path):
    content = parts.settings(
        folder, tmp_path / "one", checkpoint={"every": 2, "keep": 9},
        evaluation={"sets": {"held": {"data": str(folder / "mixed"), "rows": 3}}, "every": 4})
    finetune(config_parse(content))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    shutil.rmtree(tmp_path / "two" / "adapter")
    for step in (4, 6):
        shutil.rmtree(tmp_path / "two" / "checkpoints" / f"step-{step:08d}")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**content, "output": str(tmp_path / "two")}))
    start = launch(path)[0]
    assert (start["step"], start["processes"], start["sharded"]) == (2, 2, True)
    for name, count in (("log.csv", 6), ("evaluation.csv", 4)):
        one, two = rows_of(tmp_path / "one" / name), rows_of(tmp_path / "two" / name)
        assert len(one) == len(two) == count
        for key in set(one[0]) - {"tokens_per_second", "set"}:
            numbers = [[float(row[key] or 0) for row in rows] for rows in (one, two)]
            assert numpy.allclose(*numbers, rtol=2e-3, atol=1e-6), key
    tensors = [load_file(tmp_path / name / "adapter/adapter_model.safetensors") for name in ("one", "two")]
    assert tensors[0].keys() == tensors[1].keys()
    for key, value in tensors[0].items():
        assert difference(value.float(), tensors[1][key].float()) < 0.05
    states = [torch.load(tmp_path / name / "checkpoints/step-00000006/state.pt", weights_only=True)
              for name in ("one", "two")]
    assert len(states[0]["model"]) == 28
    for kind in ("model", "optimizer"):
        assert states[0][kind].keys() == states[1][kind].keys()
    for key, value in states[0]["optimizer"]["state"].items():
        assert value["exp_avg"].shape == states[1]["optimizer"]["state"][key]["exp_avg"].shape
