#!/usr/bin/env python3
"""bench/evidence/perplexity.py with a program that only pretends: what it runs, keeps and reports."""

import contextlib
import importlib
import io
import json
import pathlib
import stat
import sys
import tempfile
import unittest
import xml.dom.minidom

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench" / "evidence"))
perplexity = importlib.import_module("perplexity")
texts = importlib.import_module("texts")

# Answers as `lca` does, takes as long as it is told, and writes down how it was called.
PROGRAM = """#!{python}
import json, os, sys
words = sys.argv[1:]
with open({log!r}, "a") as log:
    log.write(json.dumps(words) + "\\n")
if words[0] == "inspect":
    print(json.dumps(dict(path={model!r}, context=8192, parameters=1000, layers=2, heads=2,
                          head_widths=dict(key=16, value=16))))
    sys.exit(0)
flag = lambda name, other=None: words[words.index(name) + 1] if name in words else other
length, ends = int(flag("--length")), [int(end) for end in flag("--ranges").split(",")]
begins = [1, *ends]
ranges = [dict(zip(("from", "to", "perplexity"), (a, min(b, length), 20.0 if a < 8192 else 90.0)))
          for a, b in zip(begins, ends) if a < length]
settings = dict(method=flag("--method", "lca"), window=1024, sink=16, group=16)
print(json.dumps(dict(tokens=length, by_range=ranges, settings=settings,
                      seconds=length / {speed}, tokens_per_s={speed})))
"""


class Evidence(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = pathlib.Path(place.name)
        self.log = self.folder / "calls"
        for name in texts.TEXTS:
            (self.folder / f"{name}.txt").write_text(f"text {name}")
        (self.folder / "model.gguf").write_text("weights")
        self.program_write(speed=1000)

    def program_write(self, speed):
        program = self.folder / "lca"
        program.write_text(PROGRAM.format(python=sys.executable, log=str(self.log), speed=speed,
                                          model=str(self.folder / "model.gguf")))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def run_script(self, *more):
        """The exit code; calls of long evaluations are in self.evaluations."""
        self.log.write_text("")
        sys.argv = ["perplexity.py", "--lca", str(self.folder / "lca"), "--model", "m", "--texts",
                    str(self.folder), "--out", str(self.folder / "out"), *more]
        with contextlib.redirect_stderr(io.StringIO()) as error:
            code = perplexity.main()
        self.error = error.getvalue()
        calls = [json.loads(line) for line in self.log.read_text().splitlines()]
        self.evaluations = [call for call in calls if call[0] == "eval"
                            and int(call[call.index("--length") + 1]) > 2048]
        return code

    def test_every_arm_runs_on_every_text_once(self):
        self.assertEqual(self.run_script(), 0)
        self.assertEqual(len(self.evaluations), 3 * len(perplexity.ARMS))
        lengths = {call[call.index("--length") + 1] for call in self.evaluations}
        self.assertEqual(lengths, {"16384", "114688"})  # dense is not read to the end
        self.assertEqual(self.run_script(), 0)
        self.assertEqual(self.evaluations, [])

    def test_what_changed_is_measured_again(self):
        self.run_script("--text", "essays", "--only", "entry", "--length", "8K")
        self.assertEqual(len(self.evaluations), 1)
        (self.folder / "essays.txt").write_text("another text")
        self.run_script("--text", "essays", "--only", "entry", "--length", "8K")
        self.assertEqual(len(self.evaluations), 1)

    def test_what_would_take_too_long_is_left(self):
        self.program_write(speed=1)
        self.assertEqual(self.run_script("--text", "essays", "--only", "entry", "--seconds", "60"), 2)
        self.assertEqual(self.evaluations, [])
        self.assertIn("left for another time", self.error)
        self.assertFalse((self.folder / "out" / "perplexity.md").exists())

    def test_the_report_has_a_cell_for_each_range(self):
        self.run_script()
        lines = (self.folder / "out" / "perplexity.md").read_text().splitlines()
        self.assertEqual(lines[0], "| essays by Paul Graham, tokens | 0–2K | 2K–4K | 4K–8K | 8K–16K | "
                                   "16K–32K | 32K–64K | 64K–112K |")
        self.assertEqual(lines[2], "| dense | 20.00 | 20.00 | 20.00 | 90.00 | – | – | – |")
        report = json.loads((self.folder / "out" / "perplexity.json").read_text())
        self.assertEqual(set(report["texts"]), set(texts.TEXTS))
        picture = xml.dom.minidom.parse(str(self.folder / "out" / "perplexity.svg"))
        self.assertEqual(len(picture.getElementsByTagName("polyline")), 3 * len(perplexity.ARMS))

    def test_a_sweep_compares_settings_on_one_text(self):
        self.assertEqual(self.run_script("--sweep", "essays", "--length", "32K"), 0)
        self.assertEqual(len(self.evaluations), 1 + 2 * 2 * 3)
        self.assertIn("mass none, sink 64", (self.folder / "out" / "sweep-essays.md").read_text())

    def test_a_program_that_fails_is_named_in_one_line(self):
        (self.folder / "lca").write_text(f"#!{sys.executable}\nimport sys\nsys.exit('lca: error: no')\n")
        self.assertEqual(self.run_script(), 1)
        self.assertIn("lca: error: no", self.error)
        self.assertEqual(self.run_script("--only", "nothing"), 1)


class Texts(unittest.TestCase):
    def test_a_wrong_text_is_not_written(self):
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            original, texts.file_read = texts.file_read, lambda *_: b"something else"
            self.addCleanup(setattr, texts, "file_read", original)
            with self.assertRaises(texts.Failure):
                texts.text_make("moby-dick", folder, None)
            self.assertEqual(list(folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main()
