"""The examples of docs/finetuning.md, in order and in one folder, with a tiny model in place of SmolLM2."""

import dataclasses
import os
import random
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("peft")
pytest.importorskip("accelerate")
pytest.importorskip("yaml")
import finetune_parts as parts  # noqa: E402
from conftest import ROOT  # noqa: E402
from test_finetune import PACKAGE  # noqa: E402

from lca.data import words  # noqa: E402
from lca.finetune import config  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
TEXT = (ROOT / "docs" / "finetuning.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|sh|yaml)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE))
    draw = random.Random(9)
    for folder in ("books", "heldout"):
        os.makedirs(folder)
        for number in range(3):
            text = "\n".join(" ".join(draw.choices(words.WORDS, k=12)) + "." for _ in range(80))
            (tmp_path / folder / f"{number}.txt").write_text(text)
    parts.tiny_llama().save_pretrained(tmp_path / "runs/first/base")
    names = {}
    for language, block in BLOCKS:
        if language == "python":
            exec(compile(block, "docs/finetuning.md", "exec"), names)
        elif language == "yaml":
            (tmp_path / "config.yaml").write_text(block.replace("model: smollm2", "model: runs/first/base"))
        else:
            script = "set -e\n" + block.replace("--tokenizer smollm2", "--tokenizer bytes")
            done = subprocess.run(["bash", "-c", script.replace("python -m", f"'{sys.executable}' -m")],
                                  capture_output=True, text=True, env=os.environ)
            assert done.returncode == 0, done.stderr
    assert [language for language, _ in BLOCKS] == ["sh", "yaml", "sh", "python"]
    assert (tmp_path / "runs/second/adapter/lca.json").exists()


def test_the_page_names_every_key():
    for part in (config.Config, config.Stage, config.Optimizer, config.Loss, config.Samples, config.Checkpoint,
                 config.Evaluation, config.EvaluationSet):
        for each in dataclasses.fields(part):
            assert f"`{each.name}`" in TEXT, each.name
