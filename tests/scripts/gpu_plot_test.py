#!/usr/bin/env python3
"""bench/gpu: the plot of the README is that of the committed results, and whole_model.py keeps what a program reports."""
import json
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench" / "gpu"))

import plot  # noqa: E402


class Plot(unittest.TestCase):
    def test_the_readmes_plot_is_that_of_the_committed_results(self):
        report = json.loads((ROOT / "bench/gpu/deepseek-v2-lite.json").read_text(encoding="utf-8"))
        drawn = (ROOT / "docs/images/gpu.svg").read_text(encoding="utf-8")
        self.assertEqual(plot.plot_svg(report), drawn)

    def test_a_length_without_a_number_is_left_out(self):
        row = {"tokens": 8192, "seconds": 1.0, "cache_bytes": 1}
        report = {"lca": {"prefill": [row]}, "million": {"error": "none"}, "dense": {"prefill": [row]},
                  "peer": {"prefill": [row, {"tokens": 16384, "error": "out of memory"}]}}
        self.assertEqual(plot.series_of(report, "seconds")["transformers"], [(8192, 1.0)])


class WholeModel(unittest.TestCase):
    def test_keeps_what_the_program_reports_and_what_went_wrong(self):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "lca"
            program.write_text('#!/bin/sh\ncase "$*" in *dense*) echo "lca: error: no" >&2; exit 1;; esac\n'
                               'echo \'{"prefill": [], "decode": []}\'\n', encoding="utf-8")
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
            out = pathlib.Path(folder) / "out.json"
            subprocess.run([sys.executable, "-B", ROOT / "bench/gpu/whole_model.py", program, out, "--no-peer"],
                           check=True, capture_output=True)
            report = json.loads(out.read_text(encoding="utf-8"))
            self.assertEqual(report["lca"]["prefill"], [])
            self.assertEqual(report["dense"]["error"], ["lca: error: no"])
            self.assertNotIn("peer", report)


if __name__ == "__main__":
    unittest.main()
