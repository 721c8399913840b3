"""The engine from Python: models, replies, sessions.

Everything long runs without the GIL, and Ctrl-C ends it within a chunk.
"""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy

from lca import _lca

Message = dict[str, str] | tuple[str, str]
Prompt = str | Sequence[int] | Sequence[Message]
Progress = Callable[[int, int], Any]

# Names that stand for a file in the user's cache folder, and the adapters that come with them.
NAMES = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf"}
ADAPTERS = {"smollm2": "smollm2-lca"}


def model_home() -> pathlib.Path:
    """The folder of models that have names: $LCA_HOME, else $XDG_CACHE_HOME/lca, else ~/.cache/lca."""
    if os.environ.get("LCA_HOME"):
        return pathlib.Path(os.environ["LCA_HOME"])
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return pathlib.Path(cache) / "lca" if os.path.isabs(cache) else pathlib.Path.home() / ".cache" / "lca"


def model_path(name: str | os.PathLike) -> str:
    """A path as it is; a name as the file it stands for."""
    text = os.fspath(name)
    if text not in NAMES or os.path.exists(text):
        return text
    path = model_home() / NAMES[text]
    if not path.exists():
        raise FileNotFoundError(f"{text} is not in {path.parent}; `make model` or scripts/model.py fetches it")
    return str(path)


def model_adapter(name: str | os.PathLike) -> str:
    """The folder of the adapter that belongs to a name: in $LCA_MODELS, else in this package; "" where there is none."""
    text = os.fspath(name)
    if text not in ADAPTERS or os.path.exists(text):
        return ""
    home = pathlib.Path(os.environ.get("LCA_MODELS") or pathlib.Path(__file__).parent / "models")
    folder = home / ADAPTERS[text]
    return str(folder) if (folder / "adapter_config.json").exists() else ""


@dataclasses.dataclass(frozen=True)
class Reply:
    """A reply and how it came about; ``str(reply)`` is its text."""

    text: str
    tokens: list[int]
    reason: str  #: "end_token", "stop_string", "length" or "cancelled"
    prompt_tokens: int
    reused_tokens: int
    prefill_seconds: float
    first_seconds: float
    decode_seconds: float
    #: (token, ln p, [(token, ln p) of the likeliest]) for each token, where asked for
    logprobs: list[tuple[int, float, list[tuple[int, float]]]]

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class Score:
    """How likely a text is, token by token."""

    tokens: list[int]
    logprobs: numpy.ndarray  #: ln p of each token given those before it; the first has none: NaN

    @property
    def total(self) -> float:
        """ln p of all tokens but the first."""
        return float(numpy.nansum(self.logprobs, dtype=numpy.float64))

    @property
    def perplexity(self) -> float:
        """exp of the mean of −ln p."""
        return math.exp(-float(numpy.nanmean(self.logprobs, dtype=numpy.float64)))


class Engine:
    """A model from a Hugging Face folder, a .gguf file, or the name ``smollm2``.

    `device` is "auto", "cpu", "cuda" or "cuda:N"; `adapter` a PEFT LoRA folder, or "none"; unless given it is the
    one that comes with the name, with method lca (``info["adapter"]`` says which is on). Knobs: `preset` and the
    settings of attention (group=8, semantic_pool="select", …; a list gives one value per layer), which change those
    the checkpoint carries; `threads`, `precision` ("auto", "f32", "bf16"), `weights` ("keep", "q8_0", "q4_0"),
    `groups` ("bf16", "fp8", "int8": on a GPU), `cache` ("bf16", "int8": on the CPU), `chunk` (tokens of a prompt that
    pass the model together), `progress` (called with 0 … 1 while the model is loaded).
    """

    def __init__(self, path: str | os.PathLike, device: str = "auto", adapter: str | os.PathLike | None = None, *,
                 preset: str = "", threads: int = 0, precision: str = "auto", weights: str = "keep",
                 groups: str = "bf16", cache: str = "bf16", chunk: int = 0,
                 progress: Callable[[float], Any] | None = None, **settings):
        known = _lca.setting_names()
        for name in settings:
            if name not in known:
                raise TypeError(f"unknown knob {name}; settings are {', '.join(known)}")
        if adapter is None:
            adapter = model_adapter(path) if _all_lca(settings.get("method", "lca")) else ""
        folder = os.fspath(adapter)
        self._model = _lca.model_load(model_path(path), device, "" if folder == "none" else folder, threads, precision,
                                      weights, groups, cache, progress)
        self._context = _lca.Context(threads)
        self._preset, self._settings, self._chunk = preset, settings, chunk
        self.session()  # wrong settings are refused here rather than later

    @property
    def info(self) -> dict[str, Any]:
        """Facts about the model: architecture, layers, parameters, device, …"""
        return self._model.info

    @property
    def settings(self) -> list[dict[str, Any]]:
        """The settings of attention in force, for each layer."""
        return self.session().settings

    # --- text ---

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """Token ids of a text; one that spells a special token becomes that token."""
        return self._model.encode(text, add_special)

    def decode(self, tokens: Sequence[int], with_special: bool = False) -> str:
        """Text of token ids."""
        return self._model.decode(list(tokens), with_special)

    def prompt_tokens(self, prompt: Prompt) -> list[int]:
        """Ids of a text, of messages in the model's chat format, or ids as they are."""
        if isinstance(prompt, str):
            return self._model.encode(prompt, True)
        if _is_conversation(prompt):
            return self._model.chat_prompt([_message(message) for message in prompt])
        return [int(token) for token in prompt]

    # --- sessions ---

    def session(self, marks: int = 8) -> Session:
        """An empty session; `marks` is how many marked positions it keeps."""
        return Session(self, _lca.session_new(self._model, self._context, self._preset, self._settings, self._chunk,
                                              marks))

    def load_session(self, path: str | os.PathLike) -> Session:
        """A session that `Session.save` wrote."""
        return Session(self, _lca.session_load(self._model, self._context, os.fspath(path)))

    # --- replies ---

    def generate(self, prompt: Prompt | Sequence[str] | Sequence[Sequence[Message]], *, stream: bool = False,
                 session: Session | None = None, max_tokens: int = 256, temperature: float = 0.0, top_k: int = 0,
                 top_p: float = 1.0, min_p: float = 0.0, repetition_penalty: float = 1.0, seed: int = 0,
                 stop: str | Sequence[str] = (), ignore_end: bool = False, logprobs: bool = False,
                 top_logprobs: int = 0, progress: Progress | None = None):
        """A reply to a text, to messages ([{"role": "user", "content": …}, …]) or to token ids.

        A list of texts, or of lists of messages or ids, is a batch: the replies come as a list and are made
        together. With `stream` the result is an iterator over pieces of text, which ends early when closed. With
        `session` a text or ids follow what the session holds; messages are the whole conversation, of which only
        what the session does not hold yet is read.
        """
        sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
                    "repetition_penalty": repetition_penalty, "seed": seed}
        ends = [] if ignore_end else list(self._model.end_tokens)
        options = _lca.generate_options(max_tokens, sampling, [stop] if isinstance(stop, str) else list(stop), ends,
                                        logprobs or top_logprobs > 0, top_logprobs)
        if _is_batch(prompt):
            if stream or session is not None or progress is not None:
                raise ValueError("a batch takes neither stream nor session nor progress")
            prompts = [self.prompt_tokens(each) for each in prompt]
            replies = _lca.generate_batch(self._model, self._context, prompts, self._preset, self._settings,
                                          self._chunk, options)
            return [Reply(**reply) for reply in replies]
        ids = self.prompt_tokens(prompt)
        if session is not None and _is_conversation(prompt):
            ids = ids[session._session.keep_prefix(ids):]
        where = self.session() if session is None else session
        if stream:
            return _stream(where, ids, options, progress)
        return Reply(**_lca.generate(where._session, ids, options, None, progress))

    def score(self, text: str | Sequence[int], progress: Progress | None = None) -> Score:
        """ln p of every token of a text, read as one prompt without a begin token."""
        return self.session().score(text, progress)

    def perplexity(self, text: str | Sequence[int], length: int | None = None) -> float:
        """Perplexity of a text, or of its first `length` tokens."""
        ids = self._ids(text)[:length]
        if len(ids) < 2:
            raise ValueError("perplexity needs at least two tokens")
        return self.score(ids).perplexity

    def logits(self, text: str | Sequence[int]) -> numpy.ndarray:
        """Logits after every token of a text: [tokens, vocabulary] float32."""
        return self.session()._session.prefill_logits(self._ids(text))

    def _ids(self, text):
        return self._model.encode(text) if isinstance(text, str) else [int(token) for token in text]


class Session:
    """A conversation: the tokens so far and the caches. Made by `Engine.session`; one thread at a time."""

    def __init__(self, engine: Engine, session):
        self._engine, self._session = engine, session

    @property
    def tokens(self) -> list[int]:
        return self._session.tokens

    def __len__(self) -> int:
        return self._session.length

    @property
    def settings(self) -> list[dict[str, Any]]:
        """The settings of attention, for each layer."""
        return self._session.settings

    @property
    def cache_bytes(self) -> int:
        """Bytes the caches hold."""
        return self._session.cache_bytes

    @property
    def dense_bytes(self) -> int:
        """Bytes that the caches of dense attention would hold."""
        return self._session.dense_bytes

    @property
    def notices(self) -> list[str]:
        """What there is to know about how a saved session was loaded; usually nothing."""
        return self._session.notices

    def read(self, prompt: Prompt, progress: Progress | None = None) -> Session:
        """Reads a prompt without replying; `progress(done, total)` may return False to stop."""
        ids = self._engine.prompt_tokens(prompt) if not isinstance(prompt, str) else self._engine.encode(prompt)
        self._session.prefill(ids, progress)
        return self

    def append(self, token: int) -> None:
        """Takes one token."""
        self._session.decode(token)

    def logits(self) -> numpy.ndarray | None:
        """Logits after the last token; None where they are not known."""
        return self._session.logits()

    def score(self, text: str | Sequence[int], progress: Progress | None = None) -> Score:
        """Reads a text and returns ln p of its tokens."""
        ids = self._engine._ids(text)
        return Score(ids, self._session.score(ids, progress))

    def generate(self, prompt: Prompt = (), **options):
        """`Engine.generate` in this session; an empty prompt continues from the last token."""
        return self._engine.generate(prompt, session=self, **options)

    def mark(self) -> None:
        """Marks the present position, to return to it later."""
        self._session.mark()

    def marks(self) -> list[int]:
        """Marked positions, ascending."""
        return self._session.marks()

    def truncate(self, length: int) -> None:
        """Drops everything after the first `length` tokens: to a mark, or where the caches allow."""
        self._session.truncate(length)

    def fork(self, length: int | None = None) -> Session:
        """Another session at the first `length` tokens of this one (default: all)."""
        return Session(self._engine, self._session.fork(length))

    def keep_prefix(self, prompt: Prompt) -> int:
        """Keeps what the session has in common with a prompt; returns how many tokens need not be read."""
        return self._session.keep_prefix(self._engine.prompt_tokens(prompt))

    def save(self, path: str | os.PathLike) -> None:
        """Writes the session to a file, completely or not at all."""
        self._session.save(os.fspath(path))


def _message(message: Message) -> tuple[str, str]:
    if isinstance(message, dict):
        if "role" not in message or "content" not in message:
            raise ValueError("a message is {\"role\": …, \"content\": …}")
        return str(message["role"]), str(message["content"])
    role, text = message
    return str(role), str(text)


def _all_lca(method: str | Sequence[str]) -> bool:
    return all(name == "lca" for name in ([method] if isinstance(method, str) else method))


def _is_conversation(prompt) -> bool:
    """A list of messages: dicts, or pairs of role and text."""
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], (dict, tuple))


def _is_batch(prompt) -> bool:
    """A list of texts, of lists of messages, or of lists of ids."""
    if isinstance(prompt, str) or len(prompt) == 0 or _is_conversation(prompt):
        return False
    return not isinstance(prompt[0], (int, numpy.integer))


def _stream(session: Session, ids: list[int], options, progress) -> Iterator[str]:
    """Pieces of a reply as they become certain. The reply is made in a thread; closing the iterator ends it."""
    pieces: queue.SimpleQueue = queue.SimpleQueue()
    closed = threading.Event()

    def work():
        try:
            _lca.generate(session._session, ids, options,
                          lambda text, _: pieces.put(text) or not closed.is_set(),
                          lambda done, total: not closed.is_set() and (progress is None
                                                                       or progress(done, total) is not False))
            pieces.put(None)
        except BaseException as error:  # raised where the pieces are read
            pieces.put(error)

    thread = threading.Thread(target=work, daemon=True)

    def read():
        thread.start()
        try:
            while True:
                try:
                    piece = pieces.get(timeout=0.05)  # so that Ctrl-C is noticed
                except queue.Empty:
                    continue
                if piece is None:
                    return
                if isinstance(piece, BaseException):
                    raise piece
                if piece:
                    yield piece
        finally:
            closed.set()
            thread.join()

    return read()
