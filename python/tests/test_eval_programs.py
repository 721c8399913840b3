"""The programs of the evidence that need a GPU for their numbers: what they do around them needs none."""

import json
import os
import random
import re
import subprocess
import sys

import pytest
from conftest import EVAL, eval_module

pytest.importorskip("torch")
pytest.importorskip("accelerate")
from lca.finetune.reading import RECIPES  # noqa: E402

layers, train, wordings = map(eval_module, ("layers", "train", "wordings"))

# --- eval/train.py ---

#: In place of lca.finetune: writes an adapter with the command's arguments, or fails.
STUB = '''
import pathlib, sys

def main():
    output = next(each for each in sys.argv if each.startswith("--set=output=")).removeprefix("--set=output=")
    print("arguments:", *sys.argv[1:])
    if output == "runs/dense":
        raise RuntimeError("out of memory")
    (pathlib.Path(output) / "adapter").mkdir(parents=True)
    (pathlib.Path(output) / "adapter" / "told").write_text(" ".join(sys.argv[1:]))
'''


@pytest.fixture
def trained(tmp_path):
    """Runs eval/train.py with the stub; returns what came of it."""
    package = tmp_path / "stub" / "lca" / "finetune"
    package.mkdir(parents=True)
    (tmp_path / "stub" / "torch.py").touch()
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(STUB)

    def run(*arguments, path=os.environ["PATH"]):
        return subprocess.run(
            [sys.executable, str(EVAL / "train.py"), *arguments, "--data", "data", "--adapters", "adapters"],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "stub"), "PATH": path}, capture_output=True,
            text=True, check=False)
    return run


def test_arms_name_recipes_that_exist_and_are_measured_with_their_adapters():
    for name, arm in train.ARMS.items():
        assert set(arm) <= {"title", "flags", "recipe", "set"}
        if "recipe" in arm:
            assert (RECIPES / f"{arm['recipe']}.yaml").exists(), name
            assert arm["flags"] == ["--adapter", f"{{adapters}}/{name}"]
            assert all(re.fullmatch(r"[\w.]+=.+", change) for change in arm.get("set", []))
    assert len({arm["title"] for arm in train.ARMS.values()}) == len(train.ARMS)


def test_adapters_of_all_arms_are_copied(trained, tmp_path):
    done = trained("lca", "lca-seed-1", "--set", "tokens=1K")
    assert done.returncode == 0, done.stderr
    for arm, changes in (("lca", ""), ("lca-seed-1", "--set=seed=1 ")):
        told = (tmp_path / "adapters" / arm / "told").read_text()
        assert told == f"smollm2 --set=output=runs/{arm} {changes}--set=tokens=1K"
        assert (tmp_path / "data" / "runs" / f"{arm}.log").read_text() == f"arguments: {told}\n"
        assert f"{tmp_path}/adapters/{arm}" in done.stdout


@pytest.mark.parametrize("works", [True, False])
def test_runs_side_by_side_share_the_gpu_where_mps_works(trained, tmp_path, works):
    tools = tmp_path / "tools"
    tools.mkdir()
    control = tools / "nvidia-cuda-mps-control"  # says how it was called, and to end what it was told
    control.write_text(f'#!/bin/sh\necho "$@" "$CUDA_MPS_PIPE_DIRECTORY" >> {tmp_path}/calls\n'
                       f'[ "$1" = -d ] && exit {int(not works)}\ncat >> {tmp_path}/calls\n')
    control.chmod(0o755)
    # The probe: the stub of torch has a GPU.
    (tmp_path / "stub" / "torch.py").write_text(
        "import os\nfrom unittest.mock import MagicMock\nones = MagicMock()\n"
        "print('pipe:', os.environ.get('CUDA_MPS_PIPE_DIRECTORY', 'none'))\n")
    done = trained("lca", "lca-seed-1", path=f"{tools}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert ("take turns" in done.stdout) == (not works)
    first, pipe = (tmp_path / "calls").read_text().split("\n")[0].split()
    assert first == "-d" and (tmp_path / "calls").read_text().endswith("quit\n") and not os.path.exists(pipe)
    told = (tmp_path / "data" / "runs" / "lca.log").read_text().split("\n")[0]
    assert told == (f"pipe: {pipe}" if works else "pipe: none")
    (tmp_path / "calls").unlink()
    assert trained("uniform", "--jobs", "1", path=f"{tools}:{os.environ['PATH']}").returncode == 0
    assert not (tmp_path / "calls").exists()  # a run alone has the GPU for itself


def test_an_arm_that_fails_names_its_log_and_the_others_go_on(trained, tmp_path):
    done = trained("dense", "window")
    log = tmp_path / "data" / "runs" / "dense.log"
    assert done.returncode == 1 and done.stderr == f"train: dense failed; see {log}\n"
    assert "out of memory" in log.read_text()
    assert not (tmp_path / "adapters" / "dense").exists() and (tmp_path / "adapters" / "window" / "told").exists()
    assert trained("base-dense").returncode == 2  # has no recipe


# --- eval/run.py ---

#: In place of lca: `lca eval everyday` of two prompts, or one that takes too long; `ruler` of one, which says what it
#: was given.
LCA = '''#!/usr/bin/env python3
import json, os, pathlib, sys, time
results = pathlib.Path(sys.argv[sys.argv.index("--results") + 1])
if "window" in str(results):
    pathlib.Path("began").touch()
    time.sleep(600)
if sys.argv[1:3] == ["eval", "ruler"]:
    results.write_text('{}\\n{"task": "vt", "length": 4096, "index": 0, "score": 0.5}\\n')
    print(json.dumps({"rows": [{"task": "arguments", "skipped": " ".join(sys.argv[3:])}]}))
    sys.exit()
assert sys.argv[1:3] == ["eval", "everyday"]
results.write_text("".join(json.dumps(line) + "\\n" for line in
                           ({}, {"prompt": 1, "tokens": 4, "kl": 0.25}, {"prompt": 0, "tokens": 2, "kl": 0.5})))
print("{}")
'''


@pytest.fixture
def whole(trained, tmp_path):
    """eval/run.py with both stubs."""
    (tmp_path / "lca").write_text(LCA)
    (tmp_path / "lca").chmod(0o755)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, str(EVAL / "run.py"), *arguments, "--data", "data", "--lca", "lca", "--texts", "texts",
             "--out", "out", *([] if "--parts" in arguments else ["--parts", "everyday"])],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path / "stub")}, capture_output=True, text=True,
            check=False)
    return run


def test_arms_are_trained_and_measured_and_what_is_there_is_kept(whole, tmp_path):
    done = whole("base-dense", "lca", "dense", "--set", "tokens=1K")
    out = tmp_path / "out"
    assert done.returncode == 1 and done.stderr == f"run: training dense failed; see {out}/dense.log\n"
    assert "lca: trained" in done.stdout and "base-dense: trained" not in done.stdout
    for arm in ("base-dense", "lca"):
        assert json.loads((out / "results" / f"{arm}.json").read_text())["everyday"] == {"tokens": [2, 4], "kl": [0.5, 0.25]}
    assert not (out / "results" / "dense.json").exists()
    assert "--set=tokens=1K" in (out / "adapters" / "lca" / "told").read_text()
    (out / "adapters" / "lca" / "told").write_text("trained before")
    assert whole("lca").returncode == 0 and (out / "adapters" / "lca" / "told").read_text() == "trained before"


def test_rulers_tasks_and_texts_reach_the_measurement(whole, tmp_path):
    done = whole("base-dense", "--parts", "ruler", "--tasks", "vt", "--words", "lists", "--squad", "dev.json",
                 "--hotpotqa", "hotpot.json")
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "out" / "results" / "base-dense.json").read_text())["ruler"]
    assert measured["scores"] == {"4096": {"vt": [0.5]}}
    given = measured["skipped"]["arguments"]
    for flag, name in (("words", "lists"), ("squad", "dev.json"), ("hotpotqa", "hotpot.json")):
        assert f"--{flag} {tmp_path}/{name}" in given
    assert "--tasks vt" in given


def test_a_run_ends_in_time(whole, tmp_path):
    done = whole("window", "lca", "--jobs", "1", "--seconds", "4")
    assert (tmp_path / "began").exists(), done.stderr  # it was in the middle of something
    told = "measuring window was ended, its time was up; training lca was ended, its time was up"
    assert done.returncode == 1 and done.stderr == f"run: {told}\n"
    assert (tmp_path / "out" / "adapters" / "window" / "told").exists()


# --- eval/mean.py ---


def test_the_mean_of_adapters_is_one(tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    def adapter(name, value, group=16):
        folder = tmp_path / name
        folder.mkdir()
        save_file({"a": torch.full((2, 3), value, dtype=torch.bfloat16)}, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text("{}")
        (folder / "lca.json").write_text(json.dumps({"group": group, "window": 8}))
        return folder

    def mean(*folders):
        return subprocess.run([sys.executable, str(EVAL / "mean.py"), *map(str, folders)], capture_output=True, text=True,
                              check=False)
    one, two, other = adapter("one", 1.0), adapter("two", 2.5), adapter("other", 2.5, group=8)
    assert mean(tmp_path / "out", one, two).returncode == 0
    made = load_file(tmp_path / "out" / "adapter_model.safetensors")["a"]
    assert made.dtype == torch.bfloat16 and torch.equal(made, torch.full((2, 3), 1.75, dtype=torch.bfloat16))
    assert (tmp_path / "out" / "lca.json").read_text() == (one / "lca.json").read_text()
    assert "is there already" in mean(tmp_path / "out", one, two).stderr
    assert f"{other}/lca.json differs from the first in group" in mean(tmp_path / "new", one, other).stderr


# --- eval/layers.py ---


def test_chosen_sizes_stay_within_the_budget_and_never_lose():
    groups, count = [4, 8, 16, 32], 12
    for seed in range(30):
        draw = random.Random(seed)
        table = {group: [draw.gauss(0.002 * group, 0.02) for _ in range(count)] for group in groups}
        for budget in (count / 32, count / 16, count / 5):
            sizes = layers.chosen(table, groups, count, budget)
            assert len(sizes) == count and set(sizes) <= set(groups)
            assert sum(1 / size for size in sizes) <= budget + 1e-9
            assert sum(table[size][layer] for layer, size in enumerate(sizes)) <= sum(table[32])


def test_the_budget_goes_to_the_layers_that_lose_most():
    table = {4: [0.0, 0.0, 0.0, 0.0], 16: [0.0, 0.1, 0.0, 0.01], 32: [0.0, 0.3, 0.0, 0.02]}
    assert layers.chosen(table, [4, 16, 32], 4, 3 / 32 + 1 / 4) == [32, 4, 32, 32]
    assert layers.chosen(table, [4, 16, 32], 4, 10.0) == [32, 4, 32, 4]  # what wins nothing stays coarse
    assert layers.chosen(table, [16, 32], 4, 4 / 32) == [32, 32, 32, 32]


def test_one_layer_is_singled_out_at_a_time():
    assert layers.singled(8, 32, 3) == [[8, 32, 32], [32, 8, 32], [32, 32, 8]]


# --- eval/wordings.py ---

LENGTH = 4096


class FakeEngine:
    """Tokens of four characters; a chat begins and ends with a token."""

    def encode(self, text):
        return [text[at:at + 4] for at in range(0, len(text), 4)]

    def prompt_tokens(self, chat):
        assert [message["role"] for message in chat] == ["user"]
        return ["<u>", *self.encode(chat[0]["content"]), "<a>"]


@pytest.fixture(scope="module")
def prompts():
    draw = random.Random(3)
    text = "".join("".join(draw.choice("abcdefg ") for _ in range(90)) + "x. " for _ in range(600))
    keys = [each.replace(" ", "-") for each in wordings.OWN]
    return wordings.Prompts(FakeEngine(), [text], keys, LENGTH)


@pytest.mark.parametrize("form", wordings.WORDINGS, ids=lambda form: form[0])
def test_a_fact_is_planted_once_outside_the_window_and_asked_for_last(prompts, form):
    _, statement, question, begin = form
    for seed in range(8):
        tokens = prompts.fact(random.Random(seed), statement, question, begin, "4471093")
        prompt = "".join(tokens)
        key = next(key for key in prompts.keys if key in prompt)
        said = statement.format(k=key, v="4471093")
        assert prompt.count("4471093") == prompt.count(said) == 1
        assert prompt.endswith(f"\n\n{question.format(k=key)}<a>{begin.format(k=key)}")
        before, after = prompt.split(said)
        assert before.endswith(". ") and after.startswith(" ")
        assert len(after) / 4 > 1024 and LENGTH - 32 < len(tokens) < LENGTH + 96


def test_a_text_without_sentences_begins_with_the_fact():
    prompts = wordings.Prompts(FakeEngine(), ["word " * 8000], ["blue-wagon"], LENGTH)
    prompt = "".join(prompts.fact(random.Random(1), "{k} is {v}.", "What is {k}?", "It is", "4471093"))
    assert prompt.startswith("<u>blue-wagon is 4471093. ")


def test_a_passage_is_a_sentence_of_the_text_and_its_beginning_is_given(prompts):
    for seed in range(8):
        tokens, rest = prompts.passage(random.Random(seed))
        text, asked = "".join(tokens).split("\n\nRepeat the sentence that begins with: ")
        begin, given = asked.split("<a>")
        assert begin == given and len(rest) == 16
        assert f". {begin} {' '.join(rest)}" in text
