"""Hashes of RULER's words and wordings, so that tests can compare with them and nothing of them is copied.

    python python/tests/ruler_hashes.py WONDERWORDS_ASSETS RULER/scripts/data/synthetic > python/tests/ruler_hashes.json

Words: nouns, adjectives and verbs of wonderwords, from which RULER draws keys and lists. Phrases: every four words in
a row of its templates, answer prefixes, needle, assignments and noise.
"""

import ast
import hashlib
import json
import pathlib
import re
import sys


def hash_of(text):
    return hashlib.blake2b(text.lower().encode(), digest_size=5).hexdigest()


def phrases(text, n=4):
    """Runs of n words; a field in braces ends a run."""
    for part in re.split(r"\{[^{}]*\}", text):
        words = re.findall(r"[a-z0-9']+", part.lower())
        for at in range(len(words) - n + 1):
            yield " ".join(words[at:at + n])


def known():
    """The sets of hashes."""
    told = json.loads((pathlib.Path(__file__).parent / "ruler_hashes.json").read_text())
    return tuple({told[name][at:at + 10] for at in range(0, len(told[name]), 10)} for name in ("words", "phrases"))


def _strings(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(each.value if isinstance(each, ast.Constant) else "{}" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def main():
    assets, scripts = map(pathlib.Path, sys.argv[1:])
    words = {word.strip() for name in ("nounlist", "adjectivelist", "verblist")
             for word in (assets / f"{name}.txt").read_text(encoding="utf-8").splitlines() if word.strip()}
    wordings = {phrase for name in ("constants", "niah", "variable_tracking", "common_words_extraction",
                                    "freq_words_extraction", "qa")
                for text in _strings(scripts / f"{name}.py") for phrase in phrases(text)}
    told = {"words": "".join(sorted(map(hash_of, words))), "phrases": "".join(sorted(map(hash_of, wordings)))}
    print(json.dumps(told, indent=0))


if __name__ == "__main__":
    main()
