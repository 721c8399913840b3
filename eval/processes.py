"""Programs that run side by side and are ended together."""
import contextlib
import os
import signal
import subprocess
import threading


class Processes:
    def __init__(self):
        self._lock, self._living, self.over = threading.Lock(), set(), False

    def run(self, words, output, folder=None):
        """Runs a program whose output goes into a file; its exit code, or None where all was ended before."""
        with self._lock:
            if self.over:
                return None
            process = subprocess.Popen([str(word) for word in words], cwd=folder, stdout=output,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            self._living.add(process)
        code = process.wait()
        with self._lock:
            self._living.discard(process)
        return code

    def end(self):
        """Kills what runs, with what it started, and lets nothing begin. Whatever is run here must survive it."""
        with self._lock:
            self.over = True
            for process in self._living:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
