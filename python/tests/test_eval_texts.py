"""The texts and prompts of the evidence: pages become text, lists are consistent, prompts are apart."""

import csv
import gzip
import json
import pathlib
import random
import subprocess
import sys

import pytest
from conftest import ROOT

sys.path += [str(ROOT / "eval" / "text"), str(ROOT / "eval" / "chat")]

import collect  # noqa: E402
import page_text  # noqa: E402
import prepare  # noqa: E402
import prompts  # noqa: E402
import sample  # noqa: E402
import windows  # noqa: E402
from lca.data import words  # noqa: E402

EVERYDAY = (ROOT / "eval" / "prompts_everyday.txt").read_text(encoding="utf-8").splitlines()


def files():
    with open(ROOT / "eval" / "text" / "files.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_page_becomes_text_without_its_navigation():
    page = b"""<?xml version="1.0"?><html class="sidebar-visible"><head><title>No</title><style>p {}</style></head>
    <body><nav>Home <ul><li>No</li></ul></nav><div class="header"><p>Next: <a>No</a></p></div>
    <h2>14.3. Joins<a class="headerlink" href="#x">\xc2\xb6</a></h2><p>A &lt;b&gt;
    and <code>c</code>.<!-- no --></p><pre>if (a &lt; b)
    return;</pre><ul><li><p>one</p></li><li>two</li></ul><table><tr><th>x</th><td>1 <p>2</p></td></tr></table>
    <script>no()</script></body></html>"""
    assert page_text.page_text("a/b.html", page) == (
        "## 14.3. Joins\n\nA <b> and c.\n\n```\nif (a < b)\n    return;\n```\n\n- one\n- two\n\n| x | 1 2\n")
    assert page_text.page_text("a/b.html.gz", gzip.compress(page)) == page_text.html_text(page)
    assert page_text.html_text("<p>Fréchet</p>".encode("latin-1")) == "Fréchet\n"


def test_pod_and_info_become_text():
    pod = b"=head1 NAME\n\nperlx - see L<perlguide> and\nC<a>\n\n=over 4\n\n=item * B<one>\n\n  code C<x>\n\n=cut\n"
    assert page_text.page_text("x.pod", pod) == "# NAME\n\nperlx - see perlguide and a\n\n- one\n\n  code C<x>\n"
    info = (b"head\n\x1f\nFile: x, Node: Top\n\nText.\n\n* Menu:\n\n* A::\n\x1f\nFile: x, Node: A\n\nMore.\n"
            b"\x1f\nTag Table:\n\x1f\n")
    assert page_text.page_text("x.info", info) == "Text.\n\nMore.\n"


def test_prose_is_told_from_lists_of_names():
    assert page_text.english_share("The value of this option is the name of a file that can be read.") > 0.3
    assert page_text.english_share("GL_TEXTURE_2D GL_RGBA gl_bind uint32_t x y z") < collect.ENGLISH


def test_books_lose_their_headers():
    raw = b"# Title: The Road\r\n\r\n## Author: Jack London\r\n\r\n-------\r\n##  Confession  \r\n\r\nThere is\r\n"
    assert collect.book_text(raw) == "## Confession\n\nThere is\n"


def test_no_author_is_both_in_training_and_held_out():
    rows = files()
    authors = {split: {row["name"].split("/")[0] for row in rows if row["split"] == split and "/" in row["name"]}
               for split in ("train", "held-out")}
    assert not authors["train"] & authors["held-out"] and len(authors["held-out"]) == 8
    assert len([row for row in rows if row["split"] == "held-out"]) >= 20
    sources = {split: {row["source"] for row in rows if row["split"] == split} for split in ("train", "general")}
    assert not sources["train"] & sources["general"]
    assert len({row["sha256"] for row in rows}) == len(rows)
    listed = json.loads((ROOT / "eval" / "text" / "sources.json").read_text(encoding="utf-8"))
    assert {package["name"] for package in listed["packages"]} < {row["source"] for row in rows}


def test_overlap_with_training_was_below_a_thousandth():
    for name in ("heldout", "general"):
        told = json.loads((ROOT / "eval" / "results" / f"overlap-{name}.json").read_text(encoding="utf-8"))
        assert told["n"] == 13 and told["share"] < 0.001
        split = {"heldout": "held-out"}.get(name, name)
        assert told["documents"] == len([row for row in files() if row["split"] == split])


def test_everyday_prompts_are_200_and_apart_from_those_of_training():
    assert len(EVERYDAY) == len(set(EVERYDAY)) == 200
    made = prompts.prompts_make(4000, 0)
    texts = [messages[-1]["content"] for messages in made]
    assert len(set(texts)) == 4000 and made == prompts.prompts_make(4000, 0)
    everyday = {tuple(prompts.words_of(line)) for line in EVERYDAY}
    runs = {run for line in EVERYDAY for run in prompts.runs_of(line)}
    for text in texts:
        assert tuple(prompts.words_of(text)) not in everyday and not prompts.runs_of(text) & runs
        assert "{" not in text and "\n" not in text
    systems = sum(messages[0]["role"] == "system" for messages in made)
    assert 0.1 < systems / 4000 < 0.2


def test_windows_begin_with_a_paragraph_and_do_not_overlap():
    text = "\n\n".join("word " * 20 + str(number) for number in range(4000))
    found = list(windows.windows_of(text))
    assert len(found) == windows.MOST and all(len(piece) == windows.SIZE for _, piece in found)
    for (at, _), (following, _) in zip(found, found[1:]):
        assert text[at - 2:at] == "\n\n" and at + windows.SIZE <= following
    assert not list(windows.windows_of(text[:windows.SIZE]))


def test_sampling_goes_on_where_it_stopped(tmp_path, smollm2, monkeypatch):
    wanted = tmp_path / "prompts.jsonl"
    asked = [[{"role": "user", "content": f"Say {word}."}] for word in ("one", "two", "three")]
    wanted.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in asked))
    replies = tmp_path / "replies.jsonl"
    replies.write_text(json.dumps({"number": 1, "ended": True, "messages": [*asked[1], {
        "role": "assistant", "content": "kept"}]}) + "\n" + '{"number": 2, "mess')
    monkeypatch.setattr(sys, "argv", ["sample.py", str(wanted), str(replies), "--model", str(smollm2), "--device", "cpu",
                                      "--workers", "1", "--tokens", "4"])
    monkeypatch.setattr(sample.multiprocessing, "set_start_method", lambda name: None)
    monkeypatch.setattr(sample.multiprocessing, "Process", _Inline)
    assert sample.main() == 0
    lines = [json.loads(line) for line in replies.read_text().splitlines()]
    assert [line["number"] for line in lines] == [0, 1, 2] and lines[1]["messages"][-1]["content"] == "kept"
    assert all(line["messages"][:-1] == asked[line["number"]] and line["messages"][-1]["content"] for line in lines)
    assert not list(tmp_path.glob("*.part"))


class _Inline:
    """A process that runs in this one."""

    def __init__(self, target, args):
        self.start, self.join = lambda: target(*args), lambda: None


@pytest.mark.parametrize("name", ["collect", "windows", "prompts", "sample"])
def test_scripts_explain_themselves(name, monkeypatch, capsys):
    module = {"collect": collect, "windows": windows, "prompts": prompts, "sample": sample}[name]
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        module.main()
    assert end.value.code == 0 and "usage" in capsys.readouterr().out


def prepared(folder, *arguments):
    return subprocess.run([sys.executable, str(ROOT / "eval" / "text" / "prepare.py"), str(folder), *arguments],
                          capture_output=True, text=True, check=False)


def test_recipes_find_the_folders_that_are_prepared():
    yaml = pytest.importorskip("yaml")
    for path in (ROOT / "python" / "lca" / "finetune" / "recipes").glob("smollm2*.yaml"):
        recipe = yaml.safe_load(path.read_text())
        named = [stage["data"] for stage in recipe.get("stages", [])]
        named += [each["data"] for each in recipe.get("evaluation", {}).get("sets", {}).values()]
        folders = {folder for each in named for folder in (each.values() if isinstance(each, dict) else [each])}
        assert folders <= set(prepare.STEPS), path.name


def test_steps_run_in_order_once_and_failures_are_told(tmp_path):
    done = prepared(tmp_path, "--steps", "prompts", "--share", "0.01")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("prompts: ") and len((tmp_path / "prompts.jsonl").read_text().splitlines()) == 82
    again = prepared(tmp_path, "--steps", "prompts", "--share", "0.01")
    assert again.returncode == 0 and again.stdout == ""
    failed = prepared(tmp_path, "--steps", "windows", "prompts", "packed-heldout", "--share", "0.02")
    assert failed.returncode == 1 and failed.stderr.startswith("prepare: packed-heldout: ")
    assert len((tmp_path / "prompts.jsonl").read_text().splitlines()) == 164  # another command is another result
    assert prepared(tmp_path, "--share", "0").returncode == 2


def test_packed_text_and_mixtures_follow_one_another(tmp_path, smollm2, monkeypatch):
    monkeypatch.setenv("LCA_HOME", str(pathlib.Path(smollm2).parent))
    draw = random.Random(1)
    for label in ("fiction", "nonfiction", "documentation"):  # no text is like another, else it would be left out
        folder = tmp_path / "data" / "train" / label
        folder.mkdir(parents=True)
        (folder / "one.txt").write_text("\n\n".join(" ".join(draw.choices(words.WORDS, k=60)) + "." for _ in range(400)))
    (tmp_path / "replies.jsonl").write_text(json.dumps({"messages": [
        {"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day."}]}) + "\n")
    done = prepared(tmp_path, "--steps", "packed-small", "packed-chat", "packed-settle", "mixed-settle", "--share", "0.002")
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "mixed-settle" / "manifest.json").read_text())
    assert told and [line.split(":")[0] for line in done.stdout.splitlines()][-2:] == ["packed-settle", "mixed-settle"]
