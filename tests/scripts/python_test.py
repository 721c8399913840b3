#!/usr/bin/env python3
"""Tests of scripts/python.py, and of what scripts/test.py makes of its output."""

import contextlib
import importlib.util
import io
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "scripts")]
import test as test_script  # noqa: E402

SPEC = importlib.util.spec_from_file_location("python_script", ROOT / "scripts" / "python.py")
script = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(script)


class Counts(unittest.TestCase):
    def counts(self, text, code):
        skips = test_script.Skips()
        return test_script.script_counts("python", text, code, skips), list(skips.lines())

    def test_the_last_line_is_counted_and_skips_are_named(self):
        said = "SKIPPED [15] python/tests/test_torch.py:300: no GPU\npython: 200 passed, 0 failed, 15 skipped\n"
        self.assertEqual(self.counts(said, 0),
                         ((200, 0, 15), ["no GPU:", "    python: python/tests/test_torch.py (15)"]))

    def test_no_network_is_one_skip_with_its_reason(self):
        self.assertEqual(self.counts("SKIPPED: the packages cannot be installed: no network\n", 77),
                         ((0, 0, 1), ["the packages cannot be installed: no network:", "    python: all"]))

    def test_a_script_that_breaks_is_a_failure(self):
        self.assertEqual(self.counts("Traceback\n", 1)[0], (0, 1, 0))
        self.assertEqual(self.counts("python: 5 passed, 0 failed, 0 skipped\n", 1)[0][1], 1)


class Environment(unittest.TestCase):
    def made(self, words, problem=None):
        """How often an environment was made for two calls, and its name; a problem of pip's skips."""
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said, \
                mock.patch.object(script, "BUILD", pathlib.Path(folder)), \
                mock.patch.object(script, "ROOT", pathlib.Path(folder)), \
                mock.patch.object(script, "run") as run, \
                mock.patch.object(script, "install", return_value=problem) as install:
            run.return_value.returncode = 0
            run.side_effect = lambda command, **_: (pathlib.Path(command[-1]).mkdir(), run.return_value)[1]
            try:
                python = [script.environment("python3", (3, 11), words, "venv") for _ in range(2)][0]
            except SystemExit as end:
                return end.code, said.getvalue()
            return install.call_count, python.parent.parent.name

    def test_it_is_made_once_for_each_list_of_packages(self):
        count, name = self.made(["numpy"])
        self.assertEqual(count, 1)
        self.assertEqual(self.made(["numpy"])[1], name)
        self.assertNotEqual(self.made(["numpy==1"])[1], name)

    def test_where_it_cannot_be_made_the_reason_is_said(self):
        code, said = self.made(["numpy"], "no network")
        self.assertEqual(code, 77)
        self.assertIn("SKIPPED: the packages of venv cannot be installed: no network", said)


if __name__ == "__main__":
    unittest.main()
