"""The examples of docs/training-data.md, in order and in one folder."""

import os
import pathlib
import random
import re
import subprocess
import sys

import pytest
from conftest import ROOT

import lca
from lca.data import tasks, words

TEXT = (ROOT / "docs" / "training-data.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(python|sh)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


@pytest.fixture
def library(tmp_path):
    """Folders of text as the page has them."""
    draw = random.Random(9)
    for folder, count in (("books/novels", 6), ("books/manuals", 12), ("heldout", 2)):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(count):
            text = "\n".join(" ".join(draw.choices(words.WORDS, k=12)) + "." for _ in range(draw.choice((40, 500))))
            (tmp_path / folder / f"{number}.txt").write_text(text)
    return tmp_path


@pytest.mark.parametrize("model", ["bytes", "smollm2"])
def test_the_examples_run(model, library, monkeypatch, request):
    monkeypatch.chdir(library)
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(lca.__file__).parents[1]))
    if model == "smollm2":
        monkeypatch.setenv("LCA_HOME", str(pathlib.Path(request.getfixturevalue("smollm2")).parent))
    names = {}
    for language, block in BLOCKS:
        if language == "python":
            exec(compile(block, "docs/training-data.md", "exec"), names)
            continue
        script = "set -e\n" + block.replace("smollm2", model).replace("python -m", f"'{sys.executable}' -m")
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=os.environ)
        assert done.returncode == 0, done.stderr
    assert [language for language, _ in BLOCKS] == ["sh", "sh", "sh", "python", "python", "sh"]


def test_the_page_names_every_task():
    assert re.findall(r"^\| `(\w+)` \|", TEXT.split("## Planting")[1], re.MULTILINE) == list(tasks.TASKS)
