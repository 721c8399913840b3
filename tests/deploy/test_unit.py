"""The systemd unit (deploy/lca.service), as far as it can be read without systemd."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "lca.service"


def settings():
    """Values by key; a line that ends with a backslash goes on."""
    found = {}
    for line in UNIT.read_text().replace("\\\n", " ").splitlines():
        if line and line[0] not in "#[":
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


class UnitTest(unittest.TestCase):
    def test_code_that_is_made_while_the_program_runs_may_run(self):
        # tests/server/live/test_unit.py runs the server under what the unit refuses.
        self.assertEqual(settings()["MemoryDenyWriteExecute"], ["no"])

    def test_its_flags_are_flags_of_the_program(self):
        known = set(re.findall(r"\"(--[a-z-]+)\"", (ROOT / "apps" / "lca" / "serve.cpp").read_text()))
        (command,) = settings()["ExecStart"]
        flags = re.findall(r"--[a-z-]+", command)
        self.assertGreaterEqual(len(flags), 4)
        self.assertLessEqual(set(flags), known)

    def test_it_has_longer_to_stop_than_the_server_drains(self):
        (drain,) = re.findall(r'"--drain", .*"(\d+)"\);', (ROOT / "apps" / "lca" / "serve.cpp").read_text())
        self.assertGreater(int(settings()["TimeoutStopSec"][0]), int(drain))


if __name__ == "__main__":
    unittest.main()
