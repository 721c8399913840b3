"""One `lca serve` process: started on a free port of loopback, watched, restarted, drained. Without Ray."""

import asyncio
import ctypes
import logging
import re
import signal
import subprocess
import threading
import time

from . import loopback

LISTENS = re.compile(r"^lca serve: .* at http://[^ ]*:(\d+)/?$")
PR_SET_PDEATHSIG = 1


class ServerDown(RuntimeError):
    """The process is not there, or does not answer."""


def die_with_parent():
    """In the child: SIGTERM when the parent's thread ends, however it ends, so that no server is left behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class LcaProcess:
    """`start` until the model is loaded; `port` while it is. `stop` may be called at any time, more than once."""

    def __init__(self, command, log=None, load_timeout=600, drain=30, restarts=3, restart_window=300):
        self.command = [*command, "--host", "127.0.0.1", "--port", "0"]
        self.log = log or logging.getLogger("lca").info
        self.load_timeout, self.drain = load_timeout, drain
        self.restarts, self.restart_window = restarts, restart_window
        self.port = None
        self._child = None
        self._announced = None
        self._starts = []
        self._stopping = False
        self._watcher = None

    @property
    def pid(self):
        return self._child.pid if self._child else None

    async def start(self):
        await self._launch()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def check(self, timeout=5):
        """Raises ServerDown where it cannot be relied on any more: restarts are used up, or it does not answer. A
        restart under way is no failure."""
        if self._watcher is not None and self._watcher.done():
            raise ServerDown(f"lca serve ended {len(self._starts)} times within {self.restart_window} s; its log says why")
        if self.port is None:
            return
        try:
            status, _ = await loopback.get(self.port, "/health", timeout)
        except (OSError, asyncio.TimeoutError) as error:
            if self._child.poll() is not None:
                return  # the watcher restarts it
            raise ServerDown(f"lca serve does not answer /health within {timeout} s") from error
        if status != 200:
            raise ServerDown(f"/health is {status}")

    def stop(self):
        """SIGTERM, which drains and saves; SIGKILL after `drain` seconds."""
        self._stopping = True
        self.port = None
        child, self._child = self._child, None
        if child is None or child.poll() is not None:
            return
        child.terminate()
        try:
            child.wait(self.drain)
        except subprocess.TimeoutExpired:
            self.log(f"lca serve still ran {self.drain} s after SIGTERM: killed")
            child.kill()
            child.wait()

    async def _launch(self):
        self._starts.append(time.monotonic())
        loop = asyncio.get_running_loop()
        self._announced = loop.create_future()
        # Popen, not asyncio: the child belongs to this thread, and asyncio's child watcher to the main one.
        self._child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, preexec_fn=die_with_parent)
        threading.Thread(target=self._read_log, args=(self._child, loop, self._announced), daemon=True).start()
        deadline = time.monotonic() + self.load_timeout
        try:
            port = await asyncio.wait_for(asyncio.shield(self._announced), self.load_timeout)
            await self._loaded(port, deadline)
        except (asyncio.TimeoutError, ServerDown) as error:
            child = self._child
            if child is not None and child.poll() is None:
                child.kill()
                child.wait()
            raise ServerDown(str(error) or f"lca serve is not ready after {self.load_timeout} s") from error
        if not self._stopping:
            self.port = port

    async def _loaded(self, port, deadline):
        while time.monotonic() < deadline and not self._stopping:
            try:
                status, _ = await loopback.get(port, "/health", 5)
            except (OSError, asyncio.TimeoutError):
                status = 0
            if status == 200:
                return
            if self._child is None or self._child.poll() is not None:
                raise ServerDown("lca serve ended while it loaded the model; its log says why")
            await asyncio.sleep(0.1)
        raise ServerDown(f"lca serve is not ready after {self.load_timeout} s")

    def _read_log(self, child, loop, announced):
        """In a thread of its own: every line goes to the log, the first address to who waits for it."""
        def tell(port, error):
            if not announced.done():
                announced.set_result(port) if error is None else announced.set_exception(error)

        def post(port, error=None):
            try:
                loop.call_soon_threadsafe(tell, port, error)
            except RuntimeError:
                pass  # the loop is closed

        with child.stderr:
            for line in child.stderr:
                text = line.decode("utf-8", "replace").rstrip()
                self.log(text)
                listens = LISTENS.match(text)
                if listens:
                    post(int(listens[1]))
        child.wait()
        post(None, ServerDown(f"lca serve ended with {child.returncode} before it listened; its log says why"))

    async def _watch(self):
        """Restarts the process when it ends by itself; returns when it ended too often."""
        while True:
            while self._child is not None and self._child.poll() is None:
                await asyncio.sleep(0.05)
            if self._stopping or self._child is None:
                return
            self.port = None
            self.log(f"lca serve (process {self._child.pid}) ended with {self._child.returncode}")
            while True:
                now = time.monotonic()
                self._starts = [start for start in self._starts if now - start < self.restart_window]
                if self._stopping or len(self._starts) > self.restarts:
                    return
                try:
                    await self._launch()
                    break
                except ServerDown as error:
                    self.log(str(error))
                    await asyncio.sleep(min(10, len(self._starts)))
