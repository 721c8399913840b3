#!/usr/bin/env python3
"""Tests of tests/golden/golden_files.py and of what scripts/test.py says about skipped tests."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "golden"), str(ROOT / "scripts")]
import golden_files  # noqa: E402
import goldens  # noqa: E402
import test as test_script  # noqa: E402


def compared(made, stored, patterns=("*",)):
    """The exit code and the last line of a comparison of two folders, given as {name: text}."""
    with tempfile.TemporaryDirectory() as scratch:
        folders = []
        for name, files in (("made", made), ("stored", stored)):
            folder = pathlib.Path(scratch, name)
            folder.mkdir()
            for file, text in files.items():
                (folder / file).write_text(text)
            folders.append(folder)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            code = golden_files.compare(folders[0], patterns, folders[1])
        return code, said.getvalue().splitlines()[-1]


class Comparison(unittest.TestCase):
    def test_the_same_files_agree(self):
        self.assertEqual(compared({"a": "x", "b.json": "[1]"}, {"a": "x", "b.json": "[1]"}),
                         (0, "2 files: 2 identical, 0 equal up to rounding, 0 wrong"))

    def test_absent_superfluous_and_changed_files_do_not(self):
        self.assertEqual(compared({"a": "x"}, {})[0], 1)
        self.assertEqual(compared({"a": "x"}, {"a": "x", "b": "y"})[0], 1)
        self.assertEqual(compared({"a": "x"}, {"a": "y"})[0], 1)

    def test_making_nothing_is_no_success(self):
        self.assertEqual(compared({}, {})[0], 1)

    def test_numbers_may_be_rounded_and_nothing_else(self):
        self.assertEqual(compared({"a.json": "[1.0000000001]"}, {"a.json": "[1.0]"}),
                         (0, "1 files: 0 identical, 1 equal up to rounding, 0 wrong"))
        for made, stored in (("[1.001]", "[1.0]"), ("[1]", "[2]"), ("[NaN]", "[1.0]"), ("[NaN]", "[NaN ]"),
                             ('{"a": 1.5}', '{"b": 1.5}'), ("[1.0, 2.0]", "[1.0]"), ('["x"]', '["y"]')):
            self.assertEqual(compared({"a.json": made}, {"a.json": stored})[0], 1, made)


class Kinds(unittest.TestCase):
    def test_every_script_is_run_and_every_folder_has_one(self):
        run = {words[0] for words, _ in goldens.KINDS.values()}
        scripts = {path.name for path in goldens.GOLDEN.glob("make_*.py")
                   if not path.name.startswith("make_models_")}
        self.assertEqual(run, scripts)
        folders = {path.name for path in goldens.GOLDEN.iterdir() if path.is_dir() and path.name != "__pycache__"}
        self.assertEqual({kind.split("/")[0].split(" ")[0] for kind in goldens.KINDS}, folders)
        readme = (goldens.GOLDEN / "README.md").read_text()
        for name in sorted(scripts | {f"`{folder}/" for folder in folders}):
            self.assertIn(name, readme)


class Skips(unittest.TestCase):
    def test_reasons_are_named_once_with_their_tests(self):
        skips = test_script.Skips()
        for i in range(9):
            skips.add("release", f"gpu.{i}", "no GPU")
        skips.add("asan", "one", "")
        skips.add("cuda", "all", "nvcc not found")
        lines = list(skips.lines())
        self.assertEqual(lines[:6], ["no GPU:", *(f"    release: gpu.{i}" for i in range(4)),
                                     "    … and 5 more"])
        self.assertIn("no reason given:", lines)
        self.assertIn("    cuda: all", lines)


if __name__ == "__main__":
    unittest.main()
