"""The tables of the evidence: bounds, paired differences, and what is kept of a measurement."""

import json
import math
import stat
import subprocess
import sys

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


def arm(shift, hits):
    return {"needle": {"4096": {"1": {"hits": "1" * hits + "0" * (20 - hits)}}},
            "general": {"ranges": [[1, 1024], [4096, 8192]],
                        "windows": {f"{i}.txt": [2.0 + 0.1 * i, 2.5 + 0.1 * i + shift] for i in range(8)}},
            "ruler": {"scores": {"4096": {"vt": [0.5 - shift] * 4, "fwe": [0.0, 1.0, 0.0, 1.0]}}},
            "everyday": {"tokens": [10, 30], "kl": [shift, shift]}}


def test_tables_pair_what_arms_have_in_common(tmp_path):
    (tmp_path / "base-dense.json").write_text(json.dumps(arm(0.0, 20)))
    (tmp_path / "lca.json").write_text(json.dumps(arm(0.1, 19)))
    text = tables.tables(tmp_path, ["vt"])
    assert "| LCA, curriculum | 19 of 20 (≥ 78.4 %) |" in text
    assert "(+10.5 %: +10.5 … +10.5)" in text  # windows differ among themselves, pairs do not
    assert "| LCA, curriculum | **40.0** | -10.0 (-10.0 … -10.0) |" in text
    assert "| LCA, curriculum | 0.1000 (0.1000 … 0.1000) |" in text


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
if arguments[1] == "needle":
    for depth in value("--depths").split(",")[::-1]:
        for keys in value("--keys").split(","):
            rows.append({{"length": int(value("--lengths")), "keys": int(keys), "depth": float(depth), "sample": 0,
                         "place": "outside", "hit": float(depth) > 0}})
if arguments[1] == "everyday":
    rows += [{{"prompt": 1, "tokens": 5, "kl": 0.5}}, {{"prompt": 0, "tokens": 4, "kl": 0.25}}]
open(value("--results"), "w").write("".join(json.dumps(row) + "\\n" for row in rows))
print(json.dumps({{"adapter": value("--adapter")}}))
'''


def test_a_measurement_keeps_a_number_a_sample(tmp_path):
    program = tmp_path / "lca"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    command = [sys.executable, str(EVAL / "measure.py"), "lca", "--lca", str(program), "--texts", str(tmp_path),
               "--adapters", str(tmp_path), "--parts", "needle,everyday", "--small", "--work", str(tmp_path / "work"),
               "--out", str(tmp_path / "lca.json")]
    subprocess.run(command, check=True, capture_output=True)
    result = json.loads((tmp_path / "lca.json").read_text())
    assert result["needle"]["4096"]["1"] == {"depths": [0.0, 0.6875], "places": ["outside"], "hits": "01"}
    assert set(result["needle"]["8192"]) == {"1", "4"}
    assert result["everyday"] == {"tokens": [4, 5], "kl": [0.25, 0.5]}
    assert result["commands"]["everyday"].startswith("lca eval everyday smollm2 --adapter ")
    other = subprocess.run([*command, "--seed", "7"], capture_output=True, text=True, check=False)
    assert other.returncode == 2 and "was measured with seed 42" in other.stderr
