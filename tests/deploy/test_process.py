"""The supervisor of one server (deploy/ray/lca_ray/process.py), with the stub in the place of the program."""

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "deploy" / "ray"))
from lca_ray import loopback  # noqa: E402
from lca_ray.process import LcaProcess, ServerDown  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
STUB = [sys.executable, "-B", str(HERE / "stub_lca.py"), "serve", "tiny"]


async def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not happen in time")
        await asyncio.sleep(0.02)


class ProcessTest(unittest.IsolatedAsyncioTestCase):
    def process(self, *flags, **settings):
        self.lines = []
        process = LcaProcess([*STUB, *flags], self.lines.append, load_timeout=30, drain=10, **settings)
        self.addCleanup(process.stop)
        return process

    async def test_it_starts_on_a_free_port_and_drains_at_the_end(self):
        process = self.process()
        await process.start()
        await process.check()
        self.assertEqual((await loopback.get(process.port, "/health", 5))[0], 200)
        process.stop()
        await until(lambda: "lca serve: drained" in self.lines)
        self.assertIsNone(process.port)

    async def test_it_is_started_again_when_it_dies(self):
        process = self.process()
        await process.start()
        first = process.pid
        os.kill(first, signal.SIGKILL)
        await until(lambda: process.port is None)
        await process.check()  # a restart is no failure
        await until(lambda: process.port is not None)
        self.assertNotEqual(process.pid, first)
        await process.check()

    async def test_one_that_dies_too_often_is_reported(self):
        process = self.process(restarts=1)
        await process.start()
        for _ in range(2):
            await until(lambda: process.port is not None)
            pid = process.pid
            os.kill(pid, signal.SIGKILL)
            await until(lambda before=pid: process.port is None or process.pid != before)
        await until(lambda: process._watcher.done())
        with self.assertRaisesRegex(ServerDown, "ended 2 times"):
            await process.check()

    async def test_one_that_cannot_load_says_so(self):
        process = self.process("--broken")
        with self.assertRaisesRegex(ServerDown, "ended with 1"):
            await process.start()
        self.assertIn("lca serve: this model cannot be loaded", self.lines)

    async def test_one_that_hangs_is_reported(self):
        process = self.process()
        await process.start()
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with self.assertRaisesRegex(ServerDown, "does not answer"):
                await process.check(timeout=0.3)
        finally:
            os.kill(process.pid, signal.SIGCONT)

    def test_no_server_outlives_its_owner(self):
        code = ("import asyncio, sys; sys.path.insert(0, sys.argv[1])\n"
                "from lca_ray.process import LcaProcess\n"
                "async def main():\n"
                "    process = LcaProcess(sys.argv[2:])\n"
                "    await process.start()\n"
                "    print(process.pid, flush=True)\n"
                "    await asyncio.sleep(60)\n"
                "asyncio.run(main())\n")
        owner = subprocess.Popen([sys.executable, "-B", "-c", code, str(HERE.parents[1] / "deploy" / "ray"), *STUB],
                                 stdout=subprocess.PIPE)
        with owner:
            pid = int(owner.stdout.readline())
            owner.kill()
        end = time.monotonic() + 10
        while alive(pid):
            self.assertLess(time.monotonic(), end, "the server is still there")
            time.sleep(0.05)


def alive(pid):
    """Not counting one that has ended and that nobody waited for."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    unittest.main()
