#!/usr/bin/env python3
"""Tests of tests/golden/golden_files.py and of what scripts/test.py makes of reports."""

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


class Reports(unittest.TestCase):
    @staticmethod
    def read(ctest, **programs):
        """What is read out of the test cases of ctest's report and of those of its programs."""
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            (folder / "reports").mkdir()
            (folder / "junit.xml").write_text(f"<testsuite>{ctest}</testsuite>")
            for name, cases in programs.items():
                text = f"<testsuites><testsuite>{cases}</testsuite></testsuites>" if cases is not None else "<te"
                (folder / "reports" / f"{name}.xml").write_text(text)
            return list(test_script.cases_read(folder))

    def test_a_test_is_what_ctest_says(self):
        ctest = ("<testcase name='a.b' status='run'/><testcase name='c' status='fail'><failure/></testcase>"
                 "<testcase name='d' status='notrun'><skipped/><system-out>x.cpp:1: Skipped\nno GPU\n</system-out>"
                 "</testcase><testcase name='e' status='disabled'/>")
        self.assertEqual(self.read(ctest), [("a.b", "passed", ""), ("c", "failed", ""), ("d", "skipped", "no GPU")])

    def test_a_program_of_many_tests_is_what_its_report_says(self):
        inside = ("<testcase name='b' classname='A' status='run'/>"
                  "<testcase name='c' classname='A' status='run'><failure/><failure/></testcase>"
                  "<testcase name='d' classname='A' status='run'><skipped message='x.cpp:1&#x0A;no GPU'/></testcase>"
                  "<testcase name='e' classname='A' status='notrun'/>")
        expected = [("p: A.b", "passed", ""), ("p: A.c", "failed", ""), ("p: A.d", "skipped", "no GPU")]
        self.assertEqual(self.read("<testcase name='p' status='fail'/>", p=inside), expected)
        self.assertEqual(self.read("<testcase name='p' status='run'/>", p=""), [])

    def test_a_program_that_broke_off_failed_itself(self):
        passed = "<testcase name='b' classname='A' status='run'/>"
        one = "<testcase name='p' status='fail'/>"
        self.assertEqual(self.read(one), [("p", "failed", "")])
        self.assertEqual(self.read(one, p=None), [("p", "failed", "")])
        # All of its tests passed, and then it leaked.
        self.assertEqual(self.read(one, p=passed), [("p: A.b", "passed", ""), ("p", "failed", "")])


if __name__ == "__main__":
    unittest.main()
