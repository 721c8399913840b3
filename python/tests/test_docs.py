"""The examples of docs/python.md, section by section."""

import pathlib
import re

import pytest
from conftest import ROOT

TEXT = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
SECTIONS = {title: re.findall(r"^```python\n(.*?)^```", body, re.MULTILINE | re.DOTALL)
            for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)}


@pytest.mark.parametrize("title", [title for title, blocks in SECTIONS.items() if blocks])
def test_the_examples_run(title, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = SECTIONS[title]
    for module in ("torch", "transformers"):
        if any(re.search(rf"^(import|from) {module}\b", block, re.MULTILINE) for block in blocks):
            pytest.importorskip(module)
    if any('"smollm2"' in block for block in blocks):
        monkeypatch.setenv("LCA_HOME", str(pathlib.Path(request.getfixturevalue("smollm2")).parent))
    names = {}
    for block in blocks:
        exec(compile(block, f"docs/python.md: {title}", "exec"), names)


def test_every_section_with_code_is_found():
    assert [title for title, blocks in SECTIONS.items() if blocks] == [
        "Operators", "Training with PyTorch", "Models of transformers", "The engine"]
