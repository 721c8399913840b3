"""`lca.patch`: a transformers model whose attention is condensed, for training and for `generate()`.

GQA models (Llama, Qwen2) come through transformers' attention interface; in MLA models (DeepSeek-V2,
MiniCPM3) the attention module's forward is replaced, because the interface sees expanded per-head keys and
a representative lives in the latent. What a forward pass needs beyond tensors (documents, settings, cache)
is worked out once, before the first layer, and travels to the layers as a keyword argument: so activation
checkpointing repeats a layer with the settings of its own pass.
"""

from __future__ import annotations

import contextlib
import sys
import types
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache, PreTrainedModel
from transformers import __version__ as transformers_version
from transformers.masking_utils import AttentionMaskInterface

from . import _rope, reference
from ._forms import Gqa, Mla
from ._pass import Part, Pass, pass_plan
from .cache import Cache, Row
from .settings import resolve, settings_of_layers

NAME = "lca"
_GQA = {"LlamaModel": "LlamaAttention", "Qwen2Model": "Qwen2Attention"}
_MLA = {"DeepseekV2Model": "DeepseekV2Attention", "MiniCPM3Model": "MiniCPM3Attention"}
# How the models' own code turns pairs of channels.
_LAYOUT = {"DeepseekV2Model": "adjacent"}
_OLDEST = (5, 17)


# --- one forward pass ---------------------------------------------------------------------------------------


def _before_model(model: nn.Module, args, kwargs):
    """Runs before a patched decoder's forward: settles documents, settings and cache of this pass."""
    state: State = model._lca
    kwargs = dict(kwargs)
    inputs = args[0] if args else kwargs.get("input_ids")
    if inputs is None:
        inputs = kwargs.get("inputs_embeds")
    if inputs is None:
        return None
    names = ("input_ids", "attention_mask", "position_ids", "past_key_values")
    kwargs.update(zip(names, args))
    cache = kwargs.get("past_key_values")
    wants_cache = kwargs.get("use_cache")
    if wants_cache is None:
        wants_cache = model.config.use_cache and not (model.training and torch.is_grad_enabled())
    kwargs["use_cache"] = bool(wants_cache)
    if isinstance(cache, Cache):
        if cache.settings != state.settings:
            raise ValueError("this cache was made with other settings; begin a new one")
    elif cache is not None and cache.get_seq_length() > 0:
        raise ValueError(f"a {type(cache).__name__} that holds tokens cannot go on in a patched model")
    elif wants_cache:
        if cache is not None and type(cache) is not DynamicCache:
            raise ValueError(f"a patched model has its own cache; {type(cache).__name__} is not supported")
        kwargs["past_key_values"] = Cache(state.settings)
    else:
        kwargs["past_key_values"] = None
    kwargs["lca_pass"] = pass_plan(state, kwargs, inputs.shape[0], inputs.shape[1], inputs.device)
    return (), kwargs


# --- one layer ----------------------------------------------------------------------------------------------


def _run(plan: Pass, layer: int, form, query: Tensor, semantic: Tensor, positional: Tensor) -> Tensor:
    """Attention of one layer: [B, n, H, d_v] of query [B, n, H, d] and entries [B, n, …]."""
    knobs = dict(plan.settings[layer])
    if torch.is_autocast_enabled(query.device.type):
        kind = torch.get_autocast_dtype(query.device.type)
        query, semantic, positional = query.to(kind), semantic.to(kind), positional.to(kind)
    held = plan.cache.layers[layer] if plan.cache is not None else None
    if held is not None and held.seen:
        return _extend(plan, held, SimpleNamespace(**knobs), form, query, semantic, positional)
    total = None
    rows = {}
    for part in plan.parts:
        options = dict(knobs, cu_seqlens=part.cu_seqlens)
        if knobs["positions"] == "entry":
            options["rope_frequencies"] = part.frequencies
        q, s, p = part.pack(query), part.pack(semantic), part.pack(positional)
        if held is None:
            out = form.attention(q, s, p, options)
        else:
            reps = form.condense(q, s, p, options)
            out = form.attend(q, s, p, reps, options)
            rows.update(_rows(plan, part, SimpleNamespace(**knobs), q, s, p, reps))
        out = part.unpack(out)
        total = out if total is None else total + out  # 0 where the documents of others lie
    if held is not None:
        held.rows = [rows[row] for row in range(plan.batch)]
        held.seen = plan.tokens
    return total


def _four(x: Tensor) -> Tensor:
    """[B, n, d] as one head: [B, n, 1, d]."""
    return x if x.dim() == 4 else x.unsqueeze(2)


def _rows(plan: Pass, part: Part, knobs, q, semantic, positional, reps) -> dict[int, Row]:
    """What the cache keeps of the rows of a part."""
    semantic, positional = _four(semantic).detach(), _four(positional).detach()
    bias = reps[2].detach() if reps[2].dim() == 3 else reps[2].detach().unsqueeze(2)
    rep_semantic, rep_positional = _four(reps[0]).detach(), _four(reps[1]).detach()
    rows = {}
    token = group = 0
    for row in part.rows:
        length = plan.lengths[row]
        m = reference.groups_at(knobs, length)
        if part.cu_seqlens is None:
            at, token, group = row, 0, 0
        else:
            at = 0
        tokens, groups = slice(token, token + length), slice(group, group + m)
        rows[row] = Row(rope_length=plan.rope_lengths[row])
        rows[row].store(knobs, q[at, tokens].detach(), semantic[at, tokens], positional[at, tokens],
                        (rep_semantic[at, groups], rep_positional[at, groups], bias[at, groups]))
        token, group = token + length, group + m
    return rows


def _extend(plan: Pass, held, knobs, form, query, semantic, positional) -> Tensor:
    semantic, positional = _four(semantic), _four(positional)
    rows = []
    for row, (first, length) in enumerate(zip(plan.firsts, plan.lengths)):
        at = (row, slice(first, first + length))
        form.frequencies = plan.frequencies[row]
        out = held.rows[row].extend(knobs, form, query[at], semantic[at], positional[at])
        rows.append(nn.functional.pad(out, (0, 0, 0, 0, first, plan.tokens - first - length)))
    held.seen += plan.tokens
    return torch.stack(rows)


def _attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, lca_pass=None, **kwargs):
    """The function that transformers' attention interface calls for GQA models."""
    if lca_pass is None:
        raise RuntimeError("attention `lca` works in a model that lca.patch has changed")
    if dropout:
        raise ValueError("lca has no attention dropout: set attention_dropout to 0")
    form = Gqa(scaling)
    out = _run(lca_pass, module.layer_idx, form, query.transpose(1, 2), value.transpose(1, 2), key.transpose(1, 2))
    return out, None


def _mla_forward(self, hidden_states, *, position_embeddings, lca_pass=None, **kwargs):
    """Replaces the forward of an MLA attention module: condensation happens in the latent."""
    if lca_pass is None:
        raise RuntimeError("attention `lca` works in a model that lca.patch has changed")
    if self.training and self.attention_dropout:
        raise ValueError("lca has no attention dropout: set attention_dropout to 0")
    batch, tokens = hidden_states.shape[:-1]
    if self.q_lora_rank is None:
        q = self.q_proj(hidden_states)
    else:
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
    q = q.view(batch, tokens, -1, self.qk_head_dim)
    nope, rope = q.split([self.qk_nope_head_dim, self.qk_rope_head_dim], -1)
    latent, k_rope = self.kv_a_proj_with_mqa(hidden_states).split([self.kv_lora_rank, self.qk_rope_head_dim], -1)
    latent = self.kv_a_layernorm(latent)
    rope, k_rope = _rotate(self, rope.transpose(1, 2), k_rope.unsqueeze(1), position_embeddings)
    query = torch.cat([nope, rope.transpose(1, 2)], -1)
    form = Mla(self, self.scaling)
    out = _run(lca_pass, self.layer_idx, form, query, latent, k_rope.squeeze(1))
    return self.o_proj(out.reshape(batch, tokens, -1)), None


def _rotate(module, q, k, position_embeddings):
    """RoPE by the model's own code, [B, heads, n, d_r]."""
    source = sys.modules[type(module).__module__]
    if hasattr(source, "apply_rotary_emb"):
        return source.apply_rotary_emb(q, k, position_embeddings.to(q.device))
    return source.apply_rotary_pos_emb(q, k, *position_embeddings)


# --- patch, override, unpatch -------------------------------------------------------------------------------


class State:
    """What a patched decoder carries."""

    def __init__(self, decoder, config):
        self.decoder, self.config = decoder, config
        self.before = config._attn_implementation
        self.had_settings = getattr(config, "lca", None)
        self.chosen: dict = {}  # as written in the config
        self.settings: tuple = ()  # of every layer
        self.hook = None
        self.follows_length = False  # entry positions, and RoPE frequencies that depend on the length
        self.turns: _rope.Turns | None = None  # then: those of the present pass

    def set(self, chosen: dict) -> None:
        self.chosen = chosen
        layers = self.config.num_hidden_layers
        layout = _LAYOUT.get(type(self.decoder).__name__, "half")
        self.settings = tuple(dict(one, rope_layout=layout) for one in settings_of_layers(chosen, layers))
        condenses = any(one["positions"] == "entry" and one["method"] != "dense" for one in self.settings)
        rotary = self.decoder.rotary_emb
        self.follows_length = condenses and _rope.depends_on_length(rotary)
        if self.follows_length:
            rotary._lca, rotary.forward = self, types.MethodType(_rope.rotary_forward, rotary)
        else:
            self.rotary_restore()

    def rotary_restore(self) -> None:
        for name in ("_lca", "forward"):
            self.decoder.rotary_emb.__dict__.pop(name, None)

    def rope_length(self, count: int) -> int | None:
        """The length whose frequencies a first prompt of so many tokens decides on; None: the model's, always."""
        if not self.follows_length:
            return None
        return _rope.rope_length(self.decoder.rotary_emb, _rope.entries(self.settings, count))

    def frequencies(self, documents, lengths, batch: int, tokens: int, device):
        """The frequencies of a RoPE length as a function, for documents of these RoPE lengths."""
        rotary = self.decoder.rotary_emb
        if not self.follows_length:
            needed = any(one["positions"] == "entry" for one in self.settings)
            return lambda length: rotary.inv_freq if needed else None
        self.turns = _rope.Turns(rotary, lengths, device)
        self.turns.assign([(*document, length) for document, length in zip(documents, lengths)], batch, tokens, device)
        return self.turns.of


def _decoder(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if type(module).__name__ in (*_GQA, *_MLA):
            return module
    raise ValueError(f"lca.patch does not know {type(model).__name__}; it takes "
                     f"{', '.join(name.removesuffix('Model') for name in (*_GQA, *_MLA))} models of transformers")


def _check_version() -> None:
    version = tuple(int(part) for part in transformers_version.split(".")[:2])
    if version < _OLDEST:
        raise RuntimeError(f"lca.patch needs transformers {_OLDEST[0]}.{_OLDEST[1]} or newer, this is "
                           f"{transformers_version}")


def _attention_modules(decoder):
    kind = {**_GQA, **_MLA}[type(decoder).__name__]
    return [module for module in decoder.modules() if type(module).__name__ == kind]


def patch(model: PreTrainedModel, preset: str | None = None, **knobs) -> PreTrainedModel:
    """Turns a transformers model into an LCA model, in place, and returns it.

    Settings start from `preset`; without one from those the model carries (its config's "lca" key, or an
    earlier patch), else from preset `training`. `knobs` change single fields; a list has one value per layer.
    """
    _check_version()
    decoder = _decoder(model)
    config = decoder.config
    if getattr(config, "use_sliding_window", False):
        raise ValueError("lca.patch: the model has sliding-window layers; set use_sliding_window to False")
    state = getattr(decoder, "_lca", None)
    chosen = resolve(preset, getattr(config, "lca", None), knobs)
    fresh = state is None
    if fresh:
        state = State(decoder, config)
    state.set(chosen)
    if fresh:
        AttentionInterface.register(NAME, _attention)
        AttentionMaskInterface.register(NAME, lambda *args, **kwargs: None)
        state.hook = decoder.register_forward_pre_hook(_before_model, with_kwargs=True)
        decoder._lca = state
        if type(decoder).__name__ in _MLA:
            for module in _attention_modules(decoder):
                module.forward = types.MethodType(_mla_forward, module)
        config._attn_implementation = NAME
    config.lca = chosen
    return model


@contextlib.contextmanager
def override(model: PreTrainedModel, **knobs):
    """Runs a block with other settings, for example method="dense" for a teacher."""
    decoder = _decoder(model)
    state = getattr(decoder, "_lca", None)
    if state is None:
        raise ValueError("lca.override takes a model that lca.patch has changed")
    before = state.chosen
    state.set(resolve(None, before, knobs))
    try:
        yield model
    finally:
        state.set(before)


def unpatch(model: PreTrainedModel) -> PreTrainedModel:
    """Undoes `patch`: the model's own attention, and the settings its config came with."""
    decoder = _decoder(model)
    state = getattr(decoder, "_lca", None)
    if state is None:
        return model
    state.hook.remove()
    state.rotary_restore()
    for module in _attention_modules(decoder):
        module.__dict__.pop("forward", None)
    decoder.config._attn_implementation = state.before
    if state.had_settings is None:
        del decoder.config.lca
    else:
        decoder.config.lca = state.had_settings
    del decoder._lca
    return model
