"""Tokenizers behind one small interface.

``tokenizer_open`` takes ``smollm2`` or a .gguf file (our engine's tokenizer), a Hugging Face folder (transformers'
where it is installed, else our engine's; ``transformers:PATH`` and ``engine:PATH`` choose), or ``bytes``: one token a
byte, for tests and trials.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import os
import re
from collections.abc import Sequence
from typing import Any, Protocol

import numpy

_PROBE = "The ferry to Østby left at 6:45, didn't it?\n\n\tif (x1 != 20317) { return \"naïve\"; }  漢字 🙂 <|x|>"


class Tokenizer(Protocol):
    """What packing and mixing need of a tokenizer."""

    name: str  #: what tokenizer_open took
    vocabulary: int

    def encode(self, texts: Sequence[str]) -> list[numpy.ndarray]:
        """Ids of each text; one that spells a special token stays text."""

    def special(self, text: str) -> list[int]:
        """Ids of a text in which special tokens are spelled out."""

    def begin(self) -> list[int]:
        """What the tokenizer puts before every text by itself."""

    def decode(self, ids: Sequence[int] | numpy.ndarray) -> str:
        """Text of ids, special tokens spelled out."""

    def chat_text(self, messages: Sequence[tuple[str, str]]) -> str:
        """A conversation in the model's chat format, up to where the assistant replies next."""

    def ends(self) -> list[int]:
        """Tokens that end a reply."""


def fingerprint(tokenizer: Tokenizer) -> str:
    """Equal for tokenizers that give equal ids, whatever program they come from."""
    ids = tokenizer.encode([_PROBE])[0]
    return hashlib.sha256(str(ids.tolist()).encode()).hexdigest()[:16]


class BytesTokenizer:
    """One token a byte, and three special tokens."""

    SPECIAL = {"<|end|>": 256, "<|user|>": 257, "<|assistant|>": 258}

    def __init__(self) -> None:
        self.name, self.vocabulary = "bytes", 259

    def encode(self, texts: Sequence[str]) -> list[numpy.ndarray]:
        return [numpy.frombuffer(text.encode("utf-8"), numpy.uint8).astype(numpy.int64) for text in texts]

    def special(self, text: str) -> list[int]:
        found: list[int] = []
        for part in re.split(r"(<\|\w+\|>)", text):
            found.extend([self.SPECIAL[part]] if part in self.SPECIAL else part.encode("utf-8"))
        return found

    def begin(self) -> list[int]:
        return []

    def decode(self, ids: Sequence[int] | numpy.ndarray) -> str:
        names = {number: text.encode() for text, number in self.SPECIAL.items()}
        return b"".join(names.get(int(i)) or bytes([int(i)]) for i in ids).decode("utf-8", "replace")

    def chat_text(self, messages: Sequence[tuple[str, str]]) -> str:
        return "".join(f"<|{role}|>\n{text}<|end|>\n" for role, text in messages) + "<|assistant|>\n"

    def ends(self) -> list[int]:
        return [256]


class EngineTokenizer:
    """The tokenizer of a model that our engine loads."""

    def __init__(self, path: str) -> None:
        from lca import _lca
        from lca.engine import model_path
        self.name = path
        self._model = _lca.model_load(model_path(path), "cpu", "", 1, "auto", "keep", "bf16", "bf16", None)
        self.vocabulary = int(self._model.info["vocabulary"])

    def encode(self, texts: Sequence[str]) -> list[numpy.ndarray]:
        return [numpy.array(self._model.encode(text, False, False), numpy.int64) for text in texts]

    def special(self, text: str) -> list[int]:
        return self._model.encode(text, False, True)

    def begin(self) -> list[int]:
        return self._model.encode("", True, False)

    def decode(self, ids: Sequence[int] | numpy.ndarray) -> str:
        return self._model.decode([int(i) for i in ids], True)

    def chat_text(self, messages: Sequence[tuple[str, str]]) -> str:
        return self.decode(self._model.chat_prompt(list(messages)))

    def ends(self) -> list[int]:
        return self._model.chat_end_tokens()


class TransformersTokenizer:
    """A tokenizer that transformers loads from a folder."""

    def __init__(self, path: str) -> None:
        from transformers import AutoTokenizer
        self.name = path
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        except Exception as error:  # it raises many kinds
            line = str(error).strip().split("\n")[0]
            raise ValueError(f"{path} has no tokenizer that transformers can read: {line}") from None
        self.vocabulary = len(self._tokenizer)
        self._backend: Any = getattr(self._tokenizer, "backend_tokenizer", None)
        if self._backend is None:
            raise ValueError(f"{path} has a tokenizer without tokenizer.json; engine:{path} may read it")
        self._begin = list(self._tokenizer("", add_special_tokens=True)["input_ids"])
        if self._tokenizer.eos_token_id in self._begin:
            self._begin.remove(self._tokenizer.eos_token_id)

    def encode(self, texts: Sequence[str]) -> list[numpy.ndarray]:
        self._backend.encode_special_tokens = True
        try:
            found = self._backend.encode_batch(list(texts), add_special_tokens=False)
        finally:
            self._backend.encode_special_tokens = False
        return [numpy.array(each.ids, numpy.int64) for each in found]

    def special(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def begin(self) -> list[int]:
        return self._begin

    def decode(self, ids: Sequence[int] | numpy.ndarray) -> str:
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False,
                                      clean_up_tokenization_spaces=False)

    def chat_text(self, messages: Sequence[tuple[str, str]]) -> str:
        if not self._tokenizer.chat_template:
            raise ValueError(f"{self.name} has no chat template; chat format needs one")
        return self._tokenizer.apply_chat_template(
            [{"role": role, "content": text} for role, text in messages], tokenize=False, add_generation_prompt=True)

    def ends(self) -> list[int]:
        end = self._tokenizer.eos_token_id
        return [] if end is None else [int(end)]


def tokenizer_open(name: str | os.PathLike) -> Tokenizer:
    """The tokenizer of a name or path; see the top of this module."""
    text = os.fspath(name)
    kind, _, path = text.partition(":")
    if text == "bytes":
        return BytesTokenizer()
    if kind == "engine":
        return EngineTokenizer(path)
    if kind == "transformers":
        return TransformersTokenizer(path)
    if os.path.isdir(text) and os.path.exists(os.path.join(text, "tokenizer.json")) \
            and importlib.util.find_spec("transformers"):
        return TransformersTokenizer(text)
    return EngineTokenizer(text)


@dataclasses.dataclass(frozen=True)
class ChatForm:
    """The tokens around the messages of a conversation."""

    open: list[int]  #: before the first user message
    turn: list[int]  #: between a user message and its reply
    next: list[int]  #: between a reply and the next user message
    close: list[int]  #: after the last reply
    system: tuple[list[int], list[int]] | None = None  #: before a system message, and between it and the first user's


def chat_form(tokenizer: Tokenizer) -> ChatForm:
    """Read off a conversation of three marked messages."""
    marks = ["Qm1Z", "Qm2Z", "Qm3Z"]
    text = tokenizer.chat_text(list(zip(("user", "assistant", "user"), marks)))
    parts = re.split("|".join(marks), text)
    if len(parts) != 4:
        raise ValueError(f"the chat template of {tokenizer.name} changes what messages say")
    head, turn, following, _ = (tokenizer.special(part) for part in parts)
    ends = set(tokenizer.ends())
    stop = next((i + 1 for i, token in enumerate(following) if token in ends), len(following))
    return ChatForm(head, turn, following, following[:stop], _system_form(tokenizer))


def _system_form(tokenizer: Tokenizer) -> tuple[list[int], list[int]] | None:
    """What stands around a system message; None where the chat format has none."""
    try:
        text = tokenizer.chat_text([("system", "Qm1Z"), ("user", "Qm2Z")])
    except Exception:  # templates refuse in ways of their own
        return None
    parts = re.split("Qm1Z|Qm2Z", text)
    if len(parts) != 3 or "Qm1Z" not in text:
        return None
    return tokenizer.special(parts[0]), tokenizer.special(parts[1])


def chat_encode(tokenizer: Tokenizer, form: ChatForm,
                messages: Sequence[tuple[str, str]]) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Ids of a conversation [system,] user, assistant, user, … and which of them the assistant says."""
    open_, messages = form.open, list(messages)
    if messages and messages[0][0] == "system":
        if form.system is None:
            raise ValueError(f"the chat format of {tokenizer.name} has no system messages")
        open_ = [*form.system[0], *tokenizer.encode([messages[0][1]])[0].tolist(), *form.system[1]]
        messages = messages[1:]
    roles = [role for role, _ in messages]
    if not roles or roles != ["user", "assistant"] * (len(roles) // 2):
        raise ValueError("a conversation is user, assistant, user, assistant, …, after a system message or none")
    ids, said = [], []
    for at, content in enumerate(tokenizer.encode([text for _, text in messages])):
        before = (open_ if at == 0 else form.next) if at % 2 == 0 else form.turn
        after = form.close if at == len(roles) - 1 else []
        # An end token belongs to the reply; inside, it is the first part of what lies between the messages.
        lead = len(form.close) if at % 2 == 0 and at else 0
        ids += [*before, *content.tolist(), *after]
        said += [True] * lead + [False] * (len(before) - lead) + [at % 2 == 1] * (len(content) + len(after))
    return numpy.array(ids, numpy.int64), numpy.array(said, bool)


def sentence_ends(tokenizer: Tokenizer) -> numpy.ndarray:
    """For each id: whether its text ends a sentence or a line."""
    found = numpy.zeros(tokenizer.vocabulary, bool)
    for i in range(tokenizer.vocabulary):
        try:
            found[i] = tokenizer.decode([i]).rstrip(" ")[-1:] in (".", "!", "?", "\n")
        except (ValueError, IndexError, RuntimeError):
            pass  # models may have more rows than their tokenizer has tokens
    return found
