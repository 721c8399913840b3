"""The binding of liblca; use the package lca."""

from collections.abc import Sequence
from typing import Any

import numpy


class View:
    """A tensor as it lies in memory; nothing is copied."""

    @property
    def shape(self) -> list[int]: ...

    @property
    def stride(self) -> list[int]:
        """In elements."""

    @property
    def address(self) -> int: ...

    @property
    def dtype(self) -> str: ...

def view_of_array(array: object) -> View:
    """The view of an array in host memory, by DLPack or the buffer protocol."""

def torch_attach(tensor_type: object) -> None:
    """The type of tensors that operators take, torch.Tensor."""

def empty_bfloat16(shape: Sequence[int]) -> object:
    """A new bfloat16 array for __dlpack__."""

def to_float32(view: View) -> numpy.ndarray:
    """A float32 numpy copy."""

class Plan:
    """All of an operator's call but its tensors."""

    @property
    def groups(self) -> int:
        """Representatives of one entry of the batch."""

    @property
    def group(self) -> int:
        """Tokens of a representative."""

    @property
    def has_bias(self) -> bool:
        """Whether rep_bias is more than zeros."""

    @property
    def has_bias_grad(self) -> bool:
        """Whether rep_bias has a gradient."""

def plan_of(q_nope: object | None, q_rope: object, positional: object, semantic: object | None, value: object | None, settings: str, scale: float, starts: Sequence[int] | None, frequencies: Sequence[float], rope_layout: str, backend: str) -> Plan:
    """The plan of a call with these tensors of PyTorch."""

def plan(mla: bool, dims: Sequence[int], settings: str, scale: float, frequencies: Sequence[float], rope_layout: str, batch: int, tokens: int, starts: Sequence[int] | None, backend: str) -> Plan:
    """
    dims: heads, kv_heads, d_nope, d_rope, d_latent, d_value. settings: "group=16 …".
    """

def set_threads(threads: int) -> None: ...

def condense(plan: Plan, inputs: Sequence, outputs: Sequence) -> None:
    """
    inputs: q_nope, q_rope, positional, semantic, w_uk; outputs: rep_positional, rep_semantic, rep_bias, scores.
    """

def condense_backward(plan: Plan, inputs: Sequence, outputs: Sequence, grads: Sequence, into: Sequence, add: bool) -> None:
    """
    grads: of rep_positional, rep_semantic, rep_bias; into: of the inputs, added to what is there with `add`.
    """

def attend(plan: Plan, inputs: Sequence, out: object, lse: object | None) -> None:
    """
    inputs: q_nope, q_rope, k_nope, k_rope, v, rep_k_nope, rep_k_rope, rep_v, rep_bias.
    """

def attend_backward(plan: Plan, inputs: Sequence, out: object, lse: object | None, out_grad: object, into: Sequence) -> None: ...

def settings_preset(name: str) -> dict[str, Any]:
    """The settings of preset paper, training or training-free."""

def settings_check(fields: dict) -> None:
    """Raises ValueError for a field that is unknown or out of range."""

def setting_names() -> list[str]: ...

class Context:
    def __init__(self, threads: int = 0) -> None: ...

    @property
    def threads(self) -> int: ...

class Model:
    @property
    def info(self) -> dict[str, Any]: ...

    @property
    def settings(self) -> list[dict[str, Any]]: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def end_tokens(self) -> list[int]: ...

    def encode(self, text: str, add_special: bool = False, parse_special: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int], with_special: bool = False) -> str: ...

    def token_text(self, id: int) -> bytes: ...

    def chat_prompt(self, messages: list) -> list[int]:
        """Ids of [(role, text), …] up to where the assistant replies."""

    def chat_end_tokens(self) -> list[int]: ...

    def chat_lead(self) -> str: ...

def model_load(path: str, device: str, adapter: str, threads: int, precision: str, weights: str, groups: str, cache: str, progress: object | None) -> Model: ...

class Session:
    def prefill(self, ids: Sequence[int], progress: object | None = None) -> None: ...

    def prefill_logits(self, ids: Sequence[int]) -> numpy.ndarray: ...

    def score(self, ids: Sequence[int], progress: object | None = None) -> numpy.ndarray: ...

    def decode(self, token: int) -> None: ...

    def logits(self) -> numpy.ndarray | None: ...

    def mark(self) -> None: ...

    def marks(self) -> list[int]: ...

    def truncate_floor(self) -> int: ...

    def truncate(self, length: int) -> None: ...

    def keep_prefix(self, prompt: Sequence[int]) -> int: ...

    def fork(self, length: int | None = None, progress: object | None = None) -> Session: ...

    def save(self, path: str) -> None: ...

    @property
    def tokens(self) -> list[int]: ...

    @property
    def length(self) -> int: ...

    @property
    def settings(self) -> list[dict[str, Any]]: ...

    @property
    def notices(self) -> list[str]: ...

    @property
    def cache_bytes(self) -> int: ...

    @property
    def dense_bytes(self) -> int: ...

def session_new(model: Model, context: Context, preset: str, changes: dict, chunk: int, marks: int) -> Session: ...

def session_load(model: Model, context: Context, path: str) -> Session: ...

class GenerateOptions:
    pass

def generate_options(max_tokens: int, sampling: dict, stops: Sequence[str], end_tokens: Sequence[int], logprobs: bool, top_logprobs: int) -> GenerateOptions: ...

def generate(session: Session, prompt: Sequence[int], options: GenerateOptions, on_piece: object | None, progress: object | None) -> dict: ...

def generate_batch(model: Model, context: Context, prompts: Sequence[Sequence[int]], preset: str, changes: dict, chunk: int, options: GenerateOptions) -> list: ...
