"""The tables of the evidence: bounds, paired differences, and what is kept of a measurement."""

import json
import math
import re
import stat
import subprocess
import sys

import pytest
from conftest import EVAL, eval_module

tables = eval_module("tables")


def test_lower_bounds_are_clopper_and_pearsons():
    assert math.isclose(tables.lower_bound(475, 500), 0.93097, abs_tol=2e-4)
    assert math.isclose(tables.lower_bound(10, 10), 0.05 ** 0.1, rel_tol=1e-9)
    assert tables.lower_bound(0, 10) == 0.0
    for hits, count in ((1, 7), (93, 100), (40, 500)):
        assert math.isclose(tables.binomial_tail(hits, count, tables.lower_bound(hits, count)), 0.05, rel_tol=1e-6)


def test_a_bootstrap_covers_its_mean():
    values = [0.0, 1.0] * 50
    low, high = tables.bootstrap(values, tables.mean)
    assert 0.38 < low < 0.45 and 0.55 < high < 0.62


def arm(shift, hits, place="outside"):
    return {"seed": 42, "needle": {"4096": {"1": {"places": [place], "hits": "1" * hits + "0" * (20 - hits)}}},
            "general": {"ranges": [[1, 1024], [4096, 8192]],
                        "windows": {f"{i}.txt": [2.0 + 0.1 * i, 2.5 + 0.1 * i + shift] for i in range(8)},
                        "documents": {f"{i}.txt": f"book {i // 2}" for i in range(8)}},
            "ruler": {"scores": {"4096": {"vt": [0.5 - shift] * 4, "fwe": [0.0, 1.0, 0.0, 1.0]}}},
            "everyday": {"tokens": [10, 30], "kl": [shift, shift]}}


def test_tables_pair_what_arms_have_in_common(tmp_path):
    (tmp_path / "base-dense.json").write_text(json.dumps(arm(0.0, 20, "inside")))
    (tmp_path / "lca.json").write_text(json.dumps(arm(0.1, 19)))
    text = tables.tables(tmp_path, ["vt"])
    assert "| LCA, curriculum | 19 of 20 (≥ 78.4 %) |" in text
    assert "| base, dense: the same prompts | 20 of 20 (≥ 86.1 %) |" in text
    assert "| general text, 8 windows of 4 documents |" in text
    assert "(+10.5 %: +10.5 … +10.5)" in text  # windows differ among themselves, pairs do not
    assert "| LCA, curriculum | **40.0** | -10.0 (-10.0 … -10.0) |" in text
    assert "| LCA, curriculum | 0.1000 (0.1000 … 0.1000) |" in text


def test_needles_that_are_not_all_outside_make_no_table(tmp_path):
    made = arm(0.0, 20)
    made["needle"]["4096"]["4"] = {"places": ["outside", "straddling"], "hits": "1"}
    (tmp_path / "lca.json").write_text(json.dumps(made))
    with pytest.raises(SystemExit, match="lca, needle: needles are outside and straddling"):
        tables.tables(tmp_path)


def test_arms_of_different_seeds_make_no_table(tmp_path):
    for seed, name in enumerate(("base-dense", "lca")):
        (tmp_path / f"{name}.json").write_text(json.dumps({**arm(0.0, 20), "seed": seed}))
    with pytest.raises(SystemExit, match="seeds 0, 1"):
        tables.tables(tmp_path)


def interval(text, arm):
    """The change of tokens 4096–8191 and its interval."""
    row = next(line for line in text.split("\n") if line.startswith(f"| {arm} |") and "…" in line)
    return [float(each) for each in re.findall(r"[-+][\d.]+", row.split("|")[3])]


def test_windows_of_one_document_count_as_one(tmp_path):
    """Documents differ, their windows do not: four windows of each tell no more than one."""
    changes = [0.0, 0.02, 0.04, 0.06, 0.08, 0.1]

    def found(windows):
        content = {"lca": {"seed": 1}, "base-dense": {"seed": 1}}
        for name, each in content.items():
            values = {f"{document}-{window}": [1.0, 2.0 + (changes[document] if name == "lca" else 0.0)]
                      for document in range(6) for window in range(windows)}
            each["general"] = {"ranges": [[1, 1024], [4096, 8192]], "windows": values,
                               "documents": {window: window.split("-")[0] for window in values}}
            (tmp_path / f"{name}.json").write_text(json.dumps(each))
        return interval(tables.tables(tmp_path), "LCA, curriculum")
    once, often = found(1), found(4)
    assert once == often and once[2] - once[1] > 5  # per cent
    written = json.loads((tmp_path / "lca.json").read_text())
    del written["general"]["documents"]
    (tmp_path / "lca.json").write_text(json.dumps(written))
    with pytest.raises(SystemExit, match="measure it again"):
        tables.tables(tmp_path)


def test_the_sweep_is_a_table_of_its_runs(tmp_path):
    rows = [{"run": "a", "title": "as it is", "needles": {"8192/1": [18, 20], "4096/1": [1, 2]},
             "general": {"4096-8192": 10.74}, "everyday_kl": 0.113, "held_out": {"kl": 0.072}},
            {"run": "b", "title": "base", "needles": {"8192/1": [3, 20]}, "general": {"4096-8192": 9.59}}]
    (tmp_path / "sweep.json").write_text(json.dumps({"rows": rows}))
    text = tables.tables(tmp_path)
    assert "| run | 8K, one key | general text" in text  # what a single run has is left out
    assert "| as it is | 18 of 20 | 10.74 | 0.113 | 0.072 |" in text
    assert "| base | 3 of 20 | 9.59 | – | – |" in text


def test_what_was_found_in_other_wordings_is_summed(tmp_path):
    rows = [{"run": "a", "title": "as it is", "needles": {"8192/1": [18, 20]}, "general": {"4096-8192": 10.74},
             "wordings": {"training 1": [24, 24], "ruler": [20, 24], "story 1": [3, 24], "passage": [0.5, 24]}},
            {"run": "b", "title": "base", "needles": {"8192/1": [3, 20]}, "general": {"4096-8192": 9.59}}]
    (tmp_path / "pooling.json").write_text(json.dumps({"rows": rows}))
    text = tables.tables(tmp_path)
    assert "| as it is | 18 of 20 | 23 of 48 | 10.74 | – | – |" in text
    assert "| base | 3 of 20 | – | 9.59 | – | – |" in text


PROGRAM = '''#!{python}
import json, sys
arguments = sys.argv[1:]
value = lambda flag: arguments[arguments.index(flag) + 1]
rows = [{{"fingerprint": True}}]
told = {{"adapter": value("--adapter"), "settings": {settings}}}
if arguments[1] == "needle":
    for depth in value("--depths").split(",")[::-1]:
        for keys in value("--keys").split(","):
            rows.append({{"length": int(value("--lengths")), "keys": int(keys), "depth": float(depth), "sample": 0,
                         "place": "{place}", "hit": float(depth) > 0}})
if arguments[1] == "everyday":
    rows += [{{"prompt": 1, "tokens": 5, "kl": 0.5}}, {{"prompt": 0, "tokens": 4, "kl": 0.25}}]
if arguments[1] == "perplexity":
    told["windows"] = [{{"document": f"{{i}}:{{value('--file')}}/00{{i}}.txt",
                        "by_range": [{{"from": 1, "to": 1024, "nll": 2.5 + i}}]}} for i in range(3)]
open(value("--results"), "w").write("".join(json.dumps(row) + "\\n" for row in rows))
print(json.dumps(told))
'''


@pytest.fixture
def measure(tmp_path):
    """Runs eval/measure.py with the stub; returns what came of it. The result is in lca.json."""
    def run(*arguments, place="outside", settings="{'method': 'lca'}"):
        program = tmp_path / "lca"
        program.write_text(PROGRAM.format(python=sys.executable, place=place, settings=settings))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return subprocess.run(
            [sys.executable, str(EVAL / "measure.py"), "lca", "--lca", str(program), "--texts", str(tmp_path),
             "--adapters", str(tmp_path), "--small", "--work", str(tmp_path / "work"), "--out",
             str(tmp_path / "lca.json"), *arguments], capture_output=True, text=True, check=False)
    return run


def test_a_measurement_keeps_a_number_a_sample(measure, tmp_path):
    assert measure("--parts", "needle,everyday").returncode == 0
    result = json.loads((tmp_path / "lca.json").read_text())
    assert result["needle"]["4096"]["1"] == {"depths": [0.0, 0.6875], "places": ["outside"], "hits": "01"}
    assert set(result["needle"]["8192"]) == {"1", "4"}
    assert result["everyday"] == {"tokens": [4, 5], "kl": [0.25, 0.5]}
    assert result["commands"]["everyday"] == (
        "lca eval everyday smollm2 --adapter TEXTS/lca --prompts eval/prompts_everyday.txt --results "
        "WORK/lca/everyday.jsonl --json --device auto")  # nothing of this machine
    other = measure("--seed", "7")
    assert other.returncode == 2 and "was measured with seed 42" in other.stderr


def test_windows_are_kept_with_their_documents(measure, tmp_path):
    (tmp_path / "windows").mkdir()
    (tmp_path / "windows" / "windows.csv").write_text(
        "split,window,text,offset\nheld-out,000.txt,fiction/wrong.txt,0\ngeneral,000.txt,documentation/one.txt,5\n"
        "general,001.txt,essays from 0,5\ngeneral,002.txt,essays from 60000,5\n")
    done = measure("--parts", "general")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "lca.json").read_text())["general"] == {
        "ranges": [[1, 1024]], "windows": {"000.txt": [2.5], "001.txt": [3.5]},
        "documents": {"000.txt": "documentation/one.txt", "001.txt": "essays"}}


@pytest.mark.parametrize("place, settings, wrong", [
    ("straddling", "{'method': 'lca'}", "not all needles are outside, some are straddling"),
    ("inside", "[{'method': 'dense'}, {'method': 'window'}]", "not all needles are outside, some are inside"),
    ("outside", "[{'method': 'lca', 'group': 4}, {'method': 'lca', 'group': 8}]", None),
    ("inside", "{'method': 'dense'}", None)])
def test_needles_count_where_all_are_outside_the_window(measure, tmp_path, place, settings, wrong):
    done = measure("--parts", "needle", place=place, settings=settings)
    assert done.returncode == int(wrong is not None), done.stderr
    assert (tmp_path / "lca.json").exists() == (wrong is None)
    if wrong:
        assert wrong in done.stderr
    else:
        assert json.loads((tmp_path / "lca.json").read_text())["needle"]["8192"]["4"]["places"] == [place]


def test_pictures_are_those_of_the_results(tmp_path):
    subprocess.run([sys.executable, str(EVAL / "pictures.py"), str(EVAL / "results" / "development"), str(tmp_path)],
                   check=True)
    for name in ("needles.svg", "curves.svg"):
        assert (tmp_path / name).read_text() == (EVAL.parent / "docs" / "images" / name).read_text(), name


def test_depths_of_a_picture_are_counted_by_tenths():
    pictures = eval_module("pictures")
    cell = {"depths": [0.0, 0.0, 0.3, 0.3, 0.6, 0.6], "hits": "110100"}
    assert pictures.by_depth({**cell, "depths": [i / 20 for i in range(20)], "hits": "1" * 15 + "0" * 5})[7:] == [
        [1, 2], [0, 2], [0, 2]]
    assert sum(count for _, count in pictures.by_depth(cell)) == 6
