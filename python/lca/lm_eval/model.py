"""The model `lca` of lm-evaluation-harness."""

from __future__ import annotations

import logging
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from lca.engine import Engine
from lca.lm_eval.scoring import continuations_score

_log = logging.getLogger(__name__)


@register_model("lca")
class LcaLM(TemplateLM):
    """`--model_args pretrained=PATH,…`: a Hugging Face folder, a .gguf file or a name, and what `lca.Engine` takes.

    `max_length` (default: what the model was trained for) cuts longer contexts from the left, as the harness does for
    other models; with a condensed cache it may be larger. `add_bos_token` (default: as the checkpoint asks).
    """

    def __init__(self, pretrained: str = "smollm2", device: str | None = None, adapter: str | None = None, *,
                 max_length: int | None = None, max_gen_toks: int = 256, add_bos_token: bool | None = None,
                 batch_size: Any = None, max_batch_size: Any = None, **knobs: Any):
        super().__init__()
        del batch_size, max_batch_size  # the engine takes as many at once as memory allows
        self.engine = Engine(pretrained, device or "auto", adapter, **knobs)
        self.max_length = int(max_length or self.engine.info["context"] or 4096)
        self.max_gen_toks = max_gen_toks
        begin = self.engine.encode("a", True)[:1]
        self._begin = begin if begin != self.engine.encode("a")[:1] else []
        self._add_begin = add_bos_token
        self._path = str(pretrained)
        self._cut = False

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> LcaLM:
        """From `--model_args` and the harness's own flags, of which the first count.

        Its `--device` is cuda:0 unless given, on machines without a GPU too: that is taken for "auto".
        """
        more = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if more.get("device") == "cuda:0":
            del more["device"]
        return cls(**{**more, **arg_dict})

    # --- tokens ---

    @property
    def eot_token_id(self) -> int:
        return self.engine._model.end_tokens[0]

    @property
    def prefix_token_id(self) -> int:
        """What a text without a context follows: the begin token, else the end token."""
        return self._begin[0] if self._begin else self.eot_token_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        ids = self.engine.encode(string)
        add = self._add_begin if add_special_tokens is None else add_special_tokens
        if add is None:
            add = bool(self._begin) and ids[:1] != self._begin
        return [self.prefix_token_id, *ids] if add else ids

    # --- chat ---

    @property
    def tokenizer_name(self) -> str:
        return self._path.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return "the checkpoint's own, as lca writes it" if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The conversation in the model's chat format; an unfinished reply of the assistant follows it."""
        history, reply = chat_history, ""
        if not add_generation_prompt and history and history[-1]["role"] == "assistant":
            history, reply = history[:-1], history[-1]["content"]
        return self.engine.decode(self.engine.prompt_tokens(history), with_special=True) + reply

    # --- requests ---

    def _shorten(self, context: list[int], room: int) -> list[int]:
        """The end of a context that leaves so much room."""
        most = max(self.max_length - room, 1)
        if len(context) > most and not self._cut:
            _log.warning("contexts are cut to their last %d tokens; model_args max_length=N changes that", most)
            self._cut = True
        return context[-most:]

    def _loglikelihood_tokens(self, requests, disable_tqdm: bool = False, **_: Any) -> list[tuple[float, bool]]:
        # The last token is not read, so there is room for one more.
        pairs = [(self._shorten(context, len(continuation) - 1), continuation)
                 for _, context, continuation in requests]
        with tqdm(total=len(pairs), desc="Running loglikelihood requests", disable=disable_tqdm) as bar:

            def done(index, score):
                bar.update()
                if requests[index][0] is not None:
                    self.cache_hook.add_partial("loglikelihood", requests[index][0], tuple(score))

            return [tuple(score) for score in continuations_score(self.engine, pairs, done)]

    def loglikelihood_rolling(self, requests, disable_tqdm: bool = False) -> list[float]:
        totals = []
        for request in tqdm(requests, desc="Running loglikelihood_rolling requests", disable=disable_tqdm):
            total = 0.0
            windows = get_rolling_token_windows(self.tok_encode(request.args[0]), self.prefix_token_id,
                                                self.max_length, 1)
            for context, predicted in map(make_disjoint_window, windows):
                total += float(self.engine.score([*context, *predicted]).logprobs[len(context):].sum(dtype=float))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
            totals.append(total)
        return totals

    def generate_until(self, requests, disable_tqdm: bool = False) -> list[str]:
        groups: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(repr(sorted(request.args[1].items(), key=str)), []).append(index)
        replies = [""] * len(requests)
        with tqdm(total=len(requests), desc="Running generate_until requests", disable=disable_tqdm) as bar:
            for group in groups.values():
                options = _options(requests[group[0]].args[1], self.max_gen_toks)
                prompts = [self._shorten(self.tok_encode(requests[index].args[0]), options["max_tokens"])
                           for index in group]
                for index, reply in zip(group, self.engine.generate(prompts, **options)):
                    replies[index] = reply.text
                    self.cache_hook.add_partial("generate_until", requests[index].args, reply.text)
                bar.update(len(group))
        return replies


def _options(arguments: dict[str, Any], max_gen_toks: int) -> dict[str, Any]:
    """The harness's generation arguments as those of `Engine.generate`."""
    given = dict(normalize_gen_kwargs(dict(arguments), max_gen_toks))
    until = given.get("until") or []
    sampled = bool(given.get("do_sample"))
    options = {"max_tokens": int(given["max_gen_toks"]), "stop": [each for each in until if each],
               "temperature": float(given.get("temperature") or 1.0) if sampled else 0.0}
    for name in ("top_p", "top_k", "min_p", "repetition_penalty", "seed"):
        if name in given and (sampled or name == "repetition_penalty"):
            options[name] = given[name]
    return options
