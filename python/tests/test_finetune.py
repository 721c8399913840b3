"""lca.finetune on a tiny Llama: losses, curriculum, configurations, and runs that are killed."""

import copy
import csv
import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")
pytest.importorskip("accelerate")
yaml = pytest.importorskip("yaml")
import finetune_parts as parts  # noqa: E402
from tiny_models import ARCHITECTURES, SMALL, VOCABULARY, tiny  # noqa: E402

import lca  # noqa: E402
from lca.data import ANSWER, Packed  # noqa: E402
from lca.engine import NAMES  # noqa: E402
from lca.finetune import ConfigError, config_parse, config_read, finetune, losses  # noqa: E402
from lca.finetune.checkpoint import folder_written, leftovers_remove  # noqa: E402
from lca.finetune.__main__ import main  # noqa: E402
from lca.finetune.config import Random  # noqa: E402
from lca.finetune.curriculum import Curriculum, Place, rate_at  # noqa: E402
from lca.finetune.loop import Trainer  # noqa: E402
from lca.finetune.models import HUB, student_make  # noqa: E402
from lca.finetune.reading import RECIPES, configs_read  # noqa: E402
from lca.finetune.report import STEP_COLUMNS, Report, Table  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
PACKAGE = pathlib.Path(lca.__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return parts.make(tmp_path_factory.mktemp("finetune"))


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def losses_of(output):
    return [{name: row[name] for name in row if name != "tokens_per_second"} for row in rows_of(output / "log.csv")]


def command(*arguments, **options):
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    return subprocess.Popen([sys.executable, "-m", "lca.finetune", *map(str, arguments)], env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


# --- losses ---


def batch_of(rows=2, length=40, seed=0):
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, parts.VOCABULARY, (rows, length), generator=draw)
    kinds = torch.randint(0, 3, (rows, length), generator=draw)
    positions = torch.arange(length).repeat(rows, 1)
    positions[:, 17:] -= 17  # two documents a row
    kinds[positions == 0] = 0
    return ids, kinds, positions


@pytest.mark.parametrize("taught", ["no", "text", "context"])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_chunked_losses_and_gradients_equal_plain_ones(chunk, taught):
    ids, kinds, positions = batch_of()
    draw = torch.Generator().manual_seed(1)
    hidden = torch.randn(2, 40, 8, generator=draw, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(parts.VOCABULARY, 8, generator=draw, dtype=torch.float64, requires_grad=True)
    theirs = torch.randn(2, 40, 8, generator=draw, dtype=torch.float64)
    head, teacher = (lambda h: h @ weight.T), (lambda h: h @ weight.detach().T * 0.5)
    context = taught == "context"
    places = losses.places_of(kinds, positions, context)
    sums = losses.loss_sums(hidden, ids, places, head, *((None, None) if taught == "no" else (theirs, teacher)), chunk)
    text = 1 if taught == "no" else 0
    ours = torch.autograd.grad(2 * sums[text] + 3 * sums[2], (hidden, weight))

    mine = (hidden @ weight.T).float().log_softmax(-1)[:, :-1]
    dense = teacher(theirs).float().log_softmax(-1)[:, :-1]
    entropy = -mine.gather(2, ids[:, 1:, None])[..., 0]
    divergence = (dense.exp() * (dense - mine)).sum(-1)
    after, inside = kinds[:, 1:], positions[:, 1:] > 0
    spoken = (after == 1) | ((after == 0) & inside if context else False)
    plain = [divergence[spoken].sum() * (taught != "no"), entropy[after == 1].sum(), entropy[after == 2].sum(),
             (mine.argmax(-1) == ids[:, 1:])[after == 2].sum().float()]
    assert torch.allclose(sums, torch.stack(plain), rtol=1e-5)
    expected = torch.autograd.grad(2 * plain[text] + 3 * plain[2], (hidden, weight))
    for one, other in zip(ours, expected):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_losses_are_those_of_the_models_own_logits(name):
    model = lca.patch(tiny(name), **SMALL)
    ids, kinds, _ = batch_of()
    ids = ids % VOCABULARY
    positions = torch.arange(40).repeat(2, 1)
    with torch.no_grad():
        sums = losses.Student(model, 16)(ids, positions, losses.places_of(kinds, positions), {"group": 2}, True)
        with lca.override(model, group=2):
            mine = model(ids, use_cache=False).logits[:, :-1].log_softmax(-1)
        with lca.override(model, method="dense"):
            theirs = model(ids, use_cache=False).logits[:, :-1].log_softmax(-1)
    entropy, after = -mine.gather(2, ids[:, 1:, None])[..., 0], kinds[:, 1:]
    divergence = (theirs.exp() * (theirs - mine)).sum(-1)
    plain = torch.stack([divergence[after == 1].sum(), entropy[after == 1].sum(), entropy[after == 2].sum()])
    assert torch.allclose(sums[:3], plain, rtol=1e-3, atol=1e-5) and plain[0] > 1e-4


def test_logits_are_never_whole():
    seen = []
    ids, kinds, positions = batch_of(rows=4, length=200)
    hidden = torch.randn(4, 200, 8, requires_grad=True)
    weight = torch.randn(parts.VOCABULARY, 8)

    def head(rows):
        seen.append(len(rows))
        return rows @ weight.T
    losses.loss_sums(hidden, ids, losses.places_of(kinds, positions, True), head, hidden.detach(), head,
                     32).sum().backward()
    assert max(seen) == 32 and sum(seen) > 1000  # forward, teacher, and again in the backward pass


@pytest.mark.parametrize("lora", [True, False])
def test_the_teacher_is_the_dense_base(folder, tmp_path, lora):
    changes = {} if lora else {"lora": None}
    config = config_parse(parts.settings(folder, tmp_path / "run", **changes))
    student = student_make(config, folder / "base", False)
    with torch.no_grad():
        for parameter in student.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn_like(parameter)
    ids, _, positions = batch_of(length=300)
    hidden, head = student._taught(ids, positions)
    base = parts.tiny_llama()
    with torch.no_grad():
        documents = [base(ids[:, :17]).logits, base(ids[:, 17:]).logits]
        assert torch.allclose(head(hidden), torch.cat(documents, 1), atol=1e-4)
        changed = student._hidden(student.causal, ids, positions)
    assert not torch.allclose(hidden, changed, atol=1e-2)


# --- curriculum ---


def test_steps_follow_the_stages_and_draw_the_same_again(folder, tmp_path):
    config = config_parse(parts.settings(folder, tmp_path / "run"))

    def all_steps(curriculum):
        found = []
        while (step := curriculum.step()) is not None:
            batch = curriculum.rows(step)
            found.append((step, batch.rows.tolist()))
        return found
    whole = all_steps(Curriculum(config))
    assert [step.stage for step, _ in whole] == [0] * 3 + [1] * 3
    assert {step.knobs["group"] for step, _ in whole} <= {2, 4}
    assert [step.knobs["sink"] for step, _ in whole] == [0] * 3 + [2] * 3
    seen = [row for _, rows in whole for row in rows]
    assert len(set(seen)) == len(seen)  # the second stage goes on in the data
    first = Curriculum(config)
    for _ in range(4):
        first.rows(first.step())
    second = Curriculum(config)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert all_steps(second) == whole[4:]
    halves = [all_steps(Curriculum(config, rank, 2)) for rank in range(2)]
    assert [a + b for (_, a), (_, b) in zip(*halves)] == [rows for _, rows in whole]


def test_random_choices_are_all_drawn(folder, tmp_path):
    content = parts.settings(folder, tmp_path / "run")
    content["stages"] = [{**content["stages"][0], "tokens": "40K", "group": {"random": [2, 4, [4, 8]]},
                          "length": {"random": [512, 1024]}, "batch": {512: 2, 1024: 1}}]
    curriculum = Curriculum(config_parse(content))
    groups, lengths, rows = [], [], {512: 2, 1024: 1}
    while (step := curriculum.step()) is not None:
        assert curriculum.rows(step).ids.shape == (rows[step.length], step.length)
        groups.append(step.knobs["group"])
        lengths.append(step.length)
    assert all(each in groups for each in (2, 4, [4, 8])) and set(lengths) == {512, 1024}
    assert curriculum.place.tokens == sum(rows[length] * length for length in lengths)


def test_the_rate_warms_up_and_falls(folder, tmp_path):
    content = parts.settings(folder, tmp_path / "run", optimizer={"rate": 1.0, "warmup": 4, "floor": 0.1})
    content["stages"][1]["rate"] = 0.5
    config = config_parse(content)
    tokens = config.stages[0].tokens
    rates = [rate_at(config, Place(9, 0, stage, step, at)) for stage, step, at in
             ((0, 0, 0), (0, 3, 0), (0, 9, tokens // 2), (0, 9, tokens), (1, 9, 0), (1, 0, 0))]
    assert numpy.allclose(rates, [0.25, 1.0, 0.55, 0.1, 0.5, 0.125])
    content["optimizer"]["schedule"] = "run"
    config = config_parse(content)
    assert numpy.isclose(rate_at(config, Place(9, config.tokens // 2, 1, 0, 0)), 0.5 * 0.55)


# --- configurations ---


WRONG = [
    (lambda c: c.update(modle="x"), "unknown key modle; did you mean model"),
    (lambda c: c.pop("model"), "model is missing"),
    (lambda c: c.update(model=3), "model must be a text"),
    (lambda c: c.update(stages=[]), "stages must be a list"),
    (lambda c: c.update(stages={"a": 1}), "stages must be a list"),
    (lambda c: c.update(seed="many"), "seed must be a whole number"),
    (lambda c: c.update(seed=1.5), "seed must be a whole number"),
    (lambda c: c.update(seed=True), "seed must be a whole number"),
    (lambda c: c.update(precision="fp8"), "precision must be one of auto, float32, bf16"),
    (lambda c: c.update(lora={"rank": 0}), "lora.rank is 0"),
    (lambda c: c.update(lora={"dropout": 0.1}), "lora.dropout is 0.1"),
    (lambda c: c.update(lora=[1]), "lora must be a mapping"),
    (lambda c: c.update(optimizer={"rate": float("nan")}), "optimizer.rate must be a number"),
    (lambda c: c.update(optimizer={"betas": [0.9]}), "optimizer.betas"),
    (lambda c: c.update(attention={"group": 4}), "attention.group is set in stages"),
    (lambda c: c["stages"][0].update(tokens="lots"), r"stages\[0\].tokens must be a number of tokens"),
    (lambda c: c["stages"][0].update(tokens="-3M"), r"stages\[0\].tokens"),
    (lambda c: c["stages"][0].update(group={"random": []}), r"stages\[0\].group.random must be a list"),
    (lambda c: c["stages"][0].update(group={"chance": [1]}), r"stages\[0\].group must be a value or \{random"),
    (lambda c: c["stages"][1].update(window="wide"), r"stages\[1\].window must be a whole number"),
    (lambda c: c["stages"][0].update(data="nowhere"), r"stages\[0\].data: there is no folder nowhere"),
    (lambda c: c["stages"][0].update(data={1024: "x"}), r"stages\[0\].data has nothing for length 512"),
    (lambda c: c["stages"][0].update(batch={1024: 2}), r"stages\[0\].batch has nothing for length 512"),
    (lambda c: c["stages"][0].update(batch={512: 0}), r"stages\[0\].batch.512 is 0"),
    (lambda c: c["stages"][0].update(batch=3, micro=2), r"stages\[0\].batch is 3"),
    (lambda c: c["stages"][0].pop("length"), r"stages\[0\].length is missing"),
    (lambda c: c.update(evaluation={"sets": {"a": {"data": "nowhere"}}}), "evaluation.sets.a.data: there is no"),
    (lambda c: c.update(evaluation={"sets": []}), "evaluation.sets must be a mapping"),
    (lambda c: c.update(samples={"prompts": [1]}), r"samples.prompts\[0\] must be a text"),
]


@pytest.mark.parametrize("change, line", WRONG, ids=[line for _, line in WRONG])
def test_a_wrong_configuration_is_refused_with_one_line(folder, tmp_path, change, line):
    content = copy.deepcopy(parts.settings(folder, tmp_path / "run"))
    change(content)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=line) as error:
        config_read(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "a: [", "- 1", "\t", "a: &x [*x]", "!!python/object:os.system {}", "\x00"])
def test_hostile_yaml_is_refused_with_one_line(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="config.yaml") as error:
        config_read(path)
    assert "\n" not in str(error.value)


LATER = [
    (lambda c: c.update(model="nowhere"), "there is no folder or file nowhere"),
    (lambda c: c["stages"][0].update(data=c["model"]), r"stages\[0\].data: .* is no folder of tokens"),
    (lambda c: c["stages"][0].update(length=100), r"stages\[0\].data: .* rows of 512 tokens"),
    (lambda c: c["stages"][0].update(batch=64), r"stages\[0\].data: .* less than one batch"),
    (lambda c: c["stages"][0].update(group=[4, 4, 4]), r"stages\[0\].group: group has 3 values"),
    (lambda c: c.update(attention={"mas": "none"}), "attention: unknown setting mas"),
    (lambda c: c.update(lora={"targets": ["nothing"]}), "lora.targets: "),
    (lambda c: c.update(evaluation={"sets": {"a": {"data": c["stages"][0]["data"], "length": 100}}}),
     "evaluation.sets.a: "),
]


@pytest.mark.parametrize("change, line", LATER, ids=[line for _, line in LATER])
def test_what_does_not_fit_data_or_model_is_refused_with_one_line(folder, tmp_path, change, line):
    content = copy.deepcopy(parts.settings(folder, tmp_path / "run"))
    change(content)
    with pytest.raises(ConfigError, match=line) as error:
        finetune(config_parse(content))
    assert "\n" not in str(error.value)


def test_recipes_are_configurations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = yaml.safe_load((RECIPES / "smollm2.yaml").read_text())
    for stage in content["stages"]:
        for data in stage["data"].values() if isinstance(stage["data"], dict) else [stage["data"]]:
            os.makedirs(data, exist_ok=True)
    for each in content["evaluation"]["sets"].values():
        os.makedirs(each["data"], exist_ok=True)
    config = config_read("smollm2", ["loss.text=3", "stages.0.tokens=1M"])
    assert config.loss.text == 3 and config.stages[0].tokens == 1_000_000 and config.lora.rank == 16
    groups = [stage.group for stage in config.stages]
    for name in ("dense", "window", "fixed", "short", "uniform"):
        assert config_read(f"smollm2-{name}").tokens > 1e7
    assert len(configs_read("smollm2-sweep")) == 8 and config_read("smollm2-dense").stages[0].method == "dense"
    assert groups[:2] == [4, 8] and config.stages[-1].lengths == [8192, 8192, 32768] and config.stages[-1].window == 1024
    assert all(sum(1 / size for size in each) == 30 / 16 for each in groups[2:])  # as many representatives as with 16
    uniform = config_read("smollm2-uniform").stages
    assert [stage.group for stage in uniform] == [4, 8, *[16] * (len(uniform) - 2)]
    assert config_read("smollm2-fixed").stages[0].group == groups[2]
    with pytest.raises(ConfigError, match="no place"):
        config_read("smollm2", ["stages.99.tokens=1"])


def test_a_configuration_changes_another(folder, tmp_path):
    base = parts.settings(folder, tmp_path / "run", loss={"text": 3, "answer": 2})
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    arm = tmp_path / "arm.yaml"
    arm.write_text("base: base.yaml\noutput: arm\nloss: {text: 5}\nall_stages: {method: window, sink: 16}\n"
                   "tokens: 3K")
    config = config_read(arm)
    assert config.output == "arm" and config.loss.text == 5 and config.loss.answer == 2
    assert [(stage.method, stage.sink, stage.window) for stage in config.stages] == \
        [("window", 16, 32), ("window", 16, Random([32, 64]))]
    assert [stage.tokens for stage in config.stages] == [1500, 1500]
    assert Curriculum(config).step().knobs["method"] == "window"
    arm.write_text("base: arm.yaml")
    with pytest.raises(ConfigError, match="without end"):
        config_read(arm)
    for text, line in (("base: nothing.yaml", "there is no file"),
                       ("base: base.yaml\nall_stages: 3", "all_stages must"),
                       ("base: base.yaml\nruns: []", "runs must be"),
                       ("base: base.yaml\nruns: {a: 1}", "runs.a must be"),
                       ("base: base.yaml\nruns: {a: {loss.txt: 1}}", "runs.a: unknown key loss.txt")):
        arm.write_text(text)
        with pytest.raises(ConfigError, match=line):
            config_read(arm)


def test_runs_of_a_table_begin_with_the_same_adapter(folder, tmp_path, capsys):
    content = parts.settings(folder, tmp_path / "first")
    content["stages"] = content["stages"][:1]
    finetune(config_parse(content))
    held = {"sets": {"held": {"data": content["stages"][0]["data"], "rows": 1}}, "every": 100}
    last = sorted((tmp_path / "first" / "checkpoints").iterdir())[-1]
    table = {**content, "output": str(tmp_path / "runs"), "optimizer": {"rate": 0.0}, "evaluation": held,
             "runs": {"checkpoint": {"init": str(last)}, "adapter": {"init": str(tmp_path / "first" / "adapter")},
                      "none": {"loss.text": 5, "all_stages.sink": 2}}}
    path = tmp_path / "table.yaml"
    path.write_text(yaml.safe_dump(table))
    assert main([str(path), "--check"]) == 0 and "run none: 1 stages" in capsys.readouterr().out
    assert main([str(path)]) == 0
    rows = {row["run"]: row for row in rows_of(tmp_path / "runs" / "runs.csv")}
    assert list(rows) == ["adapter", "checkpoint", "none"]
    rounded, exact, without = (float(rows[name]["kl"]) for name in rows)
    assert abs(exact - rounded) < 0.02 * exact and abs(exact - without) > 0.1 * exact
    names = ("adapter_model.safetensors",)
    for name in names:  # the rate is 0
        assert (tmp_path / "runs/checkpoint/adapter" / name).read_bytes() == \
            (tmp_path / "first/adapter" / name).read_bytes()
    for wrong, line in ((tmp_path, "neither an adapter nor a checkpoint"), (last, "does not fit")):
        content.update(output=str(tmp_path / "wrong"), init=str(wrong), lora={"rank": 2})
        with pytest.raises(ConfigError, match=line):
            finetune(config_parse(content))


def test_a_stage_leaves_an_adapter_with_its_settings(folder, tmp_path):
    content = parts.settings(folder, tmp_path / "run", seconds=0)
    content["stages"][0]["tokens"] = 2 * parts.LENGTH
    finetune(config_parse(content))
    settings = json.loads((tmp_path / "run/adapter/lca.json").read_text())
    assert settings["group"] == 4 and settings["sink"] == 0
    finetune(config_parse({**content, "seconds": None}))
    assert json.loads((tmp_path / "run/adapter/lca.json").read_text())["sink"] == 2


@pytest.mark.parametrize("model", [*HUB, "model.gguf"])
def test_an_adapter_names_a_base_that_transformers_can_load(folder, tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)  # where no folder has the name

    def named():
        config = config_parse(parts.settings(folder, tmp_path / "run", model=model))
        return student_make(config, folder / "base", False).model.peft_config["default"].base_model_name_or_path
    assert named() == HUB.get(model, str(folder / "base"))
    (tmp_path / model).mkdir()
    assert named() == str(folder / "base")
    assert set(HUB) == set(NAMES)


# --- runs ---


def test_a_killed_run_goes_on_bit_for_bit(folder, tmp_path, capsys):
    content = parts.settings(folder, tmp_path / "whole")
    finetune(config_parse(content))
    content["output"] = str(tmp_path / "killed")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content))
    running = command(path, "--json")
    for line in running.stdout:
        event = json.loads(line)
        if event["event"] == "step" and event["step"] == 5:
            os.kill(running.pid, signal.SIGKILL)
            break
    running.communicate()
    assert running.returncode == -signal.SIGKILL
    saved = sorted(each.name for each in (tmp_path / "killed" / "checkpoints").iterdir())
    assert saved == ["step-00000002", "step-00000004"]
    draft = tmp_path / "killed" / "checkpoints" / "step-00000006.part"  # as if killed while it was written
    draft.mkdir()
    (draft / "state.json").write_text("{")
    for name in ("curves.svg.part", "log.csv.part"):  # these are files
        (tmp_path / "killed" / name).write_text("half of")
    capsys.readouterr()
    finetune(config_parse(content), as_json=True)
    assert not list((tmp_path / "killed").rglob("*.part"))
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[0]["step"] == 4 and [event["step"] for event in events if event["event"] == "step"] == [5, 6]
    whole, killed = losses_of(tmp_path / "whole"), losses_of(tmp_path / "killed")
    assert [row["step"] for row in killed] == list("123456")
    assert killed == whole
    names = ("adapter_model.safetensors", "lca.json")
    for name in names:
        assert (tmp_path / "killed/adapter" / name).read_bytes() == (tmp_path / "whole/adapter" / name).read_bytes()
    changed = copy.deepcopy(content)
    changed["stages"][0]["group"] = 8
    with pytest.raises(ConfigError, match="begun with another stages"):
        finetune(config_parse(changed))


def test_parts_of_a_batch_make_the_same_step(folder, tmp_path):
    logs = []
    for micro in (0, 1):
        content = parts.settings(folder, tmp_path / str(micro), loss={"context": True, "text": 2.0})
        for stage in content["stages"]:
            stage["micro"] = micro
        finetune(config_parse(content))
        logs.append(losses_of(tmp_path / str(micro)))
    for one, other in zip(*logs):
        for name in ("loss", "kl", "gradient"):
            assert numpy.isclose(float(one[name]), float(other[name]), rtol=1e-3)


def test_compiled_layers_share_their_graphs(folder, tmp_path):
    from lca import patching
    from torch._dynamo.utils import counters
    from transformers import AttentionInterface
    logs, graphs = [], []
    try:
        for layers, backend in ((2, False), (2, "aot_eager"), (4, "aot_eager")):
            torch._dynamo.reset()
            counters.clear()
            parts.tiny_llama(layers=layers).save_pretrained(tmp_path / f"base-{layers}")
            content = parts.settings(folder, tmp_path / f"{layers}-{backend}", compile=backend,
                                     model=str(tmp_path / f"base-{layers}"), gradient_checkpointing=False)
            finetune(config_parse(content))
            logs.append(losses_of(tmp_path / f"{layers}-{backend}"))
            graphs.append(counters["stats"]["unique_graphs"])
    finally:
        AttentionInterface.register(patching.NAME, patching._attention)
        torch._dynamo.reset()
    assert graphs[0] == 0 and 0 < graphs[1] == graphs[2]
    for one, other in zip(*logs[:2]):
        assert numpy.isclose(float(one["loss"]), float(other["loss"]), rtol=1e-4)


def test_training_lowers_the_loss_and_is_reported(folder, tmp_path, capsys):
    content = parts.settings(
        folder, tmp_path / "run", loss={"teacher": False}, optimizer={"rate": 0.02, "warmup": 2},
        evaluation={"sets": {"held": {"data": str(folder / "mixed"), "rows": 3}}, "every": 4, "batch": 2},
        samples={"prompts": ["The code"], "every": 4, "tokens": 4})
    content["stages"] = [{**content["stages"][0], "tokens": 24 * 1024}]
    result = finetune(config_parse(content), as_json=True)
    assert (result.steps, result.tokens) == (24, 24 * 1024)
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[0]["event"] == "start" and events[-1]["event"] == "end"
    log, held = rows_of(tmp_path / "run/log.csv"), rows_of(tmp_path / "run/evaluation.csv")
    assert len(log) == 24 == sum(event["event"] == "step" for event in events)
    assert [int(row["step"]) for row in held] == [0, 4, 8, 12, 16, 20, 24]
    assert float(held[-1]["text_loss"]) < float(held[0]["text_loss"]) - 0.5
    assert numpy.isclose(float(held[0]["text_perplexity"]), numpy.exp(float(held[0]["text_loss"])))
    samples = [json.loads(line) for line in (tmp_path / "run/samples.jsonl").read_text().splitlines()]
    assert [each["step"] for each in samples] == [4, 8, 12, 16, 20, 24]
    drawn = (tmp_path / "run/curves.svg").read_text()
    assert drawn.count("<polyline") == 5 and "held: answer" in drawn  # text, answer; the same held out; the rate


def test_held_out_rows_come_once_each_and_fill_up_has_no_loss(folder, tmp_path):
    content = parts.settings(
        folder, tmp_path / "run",
        evaluation={"sets": {"held": {"data": str(folder / "mixed"), "rows": 3}}, "batch": 2})
    trainer = Trainer(config_parse(content), show=False)
    found = list(trainer.held_out("held"))
    trainer.close()
    packed = Packed(str(folder / "mixed"))
    rows = [packed.row(number, parts.LENGTH) for number in (0, 1, 2, 2)]
    assert numpy.array_equal(numpy.concatenate([ids.numpy() for ids, *_ in found]), [ids for ids, _, _ in rows])
    counted = sum(len(places.answer) for _, _, places, _ in found)
    assert counted == sum((kinds == ANSWER).sum() for _, kinds, _ in rows[:3])


def test_the_command_says_what_is_wrong_in_one_line(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("model: x\noutput: y\nstages: 3\n")
    running = command(path)
    out, errors = running.communicate()
    assert running.returncode == 1 and out == ""
    assert errors == f"lca.finetune: {path}: stages must be a list with entries, not 3\n"


def test_the_command_shows_examples_and_recipes(capsys):
    from lca.finetune.__main__ import main
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0 and "python -m lca.finetune config.yaml --json" in capsys.readouterr().out
    assert main(["--recipe", "fsdp2"]) == 0
    assert capsys.readouterr().out == (RECIPES / "fsdp2.yaml").read_text()
    for name in ("nothing", "../recipes/fsdp2"):
        with pytest.raises(SystemExit, match="there is no recipe"):
            main(["--recipe", name])


def test_a_folder_is_replaced_completely_or_not_at_all(tmp_path):
    target = tmp_path / "result"
    for content in ("first", "second"):
        with folder_written(target) as draft:
            (draft / "file").write_text(content)
    with pytest.raises(KeyError), folder_written(target) as draft:
        (draft / "file").write_text("third")
        raise KeyError
    assert (target / "file").read_text() == "second"
    (tmp_path / "curves.svg.part").touch()
    (tmp_path / "link.part").symlink_to(target)
    leftovers_remove(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["result"] and (target / "file").exists()


def test_a_table_goes_on_after_a_torn_row(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("step,loss\n1,0.5\n2,0.25\n3,0.1\n4")
    table = Table(path, ("step", "loss"), 2)
    table.add({"step": 3, "loss": 0.125})
    table.close()
    assert [list(row.values()) for row in rows_of(path)] == [["1", "0.5"], ["2", "0.25"], ["3", "0.125"]]


def test_the_live_line_has_rate_and_time_left(tmp_path, capsys):
    report = Report(tmp_path, total=10_000, step=4, tokens=2_000, show=True)
    row = {**dict.fromkeys(STEP_COLUMNS, 0), "step": 5, "stage": 2, "tokens": 4_000, "length": 512, "group": 16,
           "window": 64, "kl": 0.25, "text": 3.5, "answer": ""}
    assert report.line(row, 4.0) == (" 40 %  stage 2 step 5  g 16 w 64 n 512  kl 0.2500 text 3.5000  500 tokens/s  "
                                     "0:12 left")
    report.step(row, 2_000)
    report.close()
    assert "stage 2 step 5" in capsys.readouterr().err
