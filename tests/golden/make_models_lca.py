"""Golden logits of whole models under latent-condensed attention.

transformers computes everything but attention, which is replaced by the plain implementation in
op_attention.py: every query gathers its own keys, in float64.
"""

import contextlib
import json

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from make_models_common import MODELS, logits_of, quiet, seeded
from make_models_mla import ROUTER_MARGIN, router_margin
import op_attention

SELECT_MARGIN = 1e-3

SMALL = {"method": "lca", "group": 4, "window": 8, "sink": 2, "summary_queries": 4, "summary": "streaming",
         "head_reduce": "mean", "semantic_pool": "weighted", "positional_pool": "select", "mass": "none"}
# name: (settings, tokens of the prompt where not all of them)
SETTINGS = {
    "streaming": (SMALL, None),
    "select_score": ({**SMALL, "semantic_pool": "select", "mass": "score"}, None),
    "prompt": ({**SMALL, "summary": "prompt", "sink": 0}, None),
    "prompt_decode": ({**SMALL, "summary": "prompt", "mass": "score"}, 40),
    "count_max": ({**SMALL, "group": 3, "window": 5, "sink": 1, "summary_queries": 6, "head_reduce": "max",
                   "semantic_pool": "mean", "positional_pool": "weighted", "mass": "count"}, None),
    "window": ({**SMALL, "method": "window"}, None),
}


# One value per layer, where a field is a list.
PER_LAYER = {**SMALL, "window": [8, 12], "sink": [0, 3], "semantic_pool": ["weighted", "select"],
             "mass": ["none", "score"]}


def of_layer(settings, layer):
    return {k: v[layer] if isinstance(v, list) else v for k, v in settings.items()}


def gqa_inputs(module, query, key, value):
    return {"q": query.transpose(1, 2), "k": key.transpose(1, 2), "v": value.transpose(1, 2)}


def mla_inputs(module, query):
    nope = module.qk_nope_head_dim
    q = query.transpose(1, 2)
    latent, k_rope = module.latents
    up = module.kv_b_proj.weight.view(module.num_heads, nope + module.v_head_dim, module.kv_lora_rank)
    return {"q_nope": q[..., :nope], "q_rope": q[..., nope:], "c": latent[:, 0], "k_rope": k_rope[:, 0],
            "w_uk": up[:, :nope], "w_uv": up[:, nope:]}


@contextlib.contextmanager
def condensed(model, settings, prompt=None, attend=op_attention.attention, frequencies=None):
    """Within the context, `model` attends under `settings`; yields the margins of `select`, one
    per layer of each run. `frequencies` where positions are those of entries."""
    margins = []

    def interface(module, query, key, value, attention_mask, scaling, **_):
        mla = hasattr(module, "kv_b_proj")
        inputs = mla_inputs(module, query) if mla else gqa_inputs(module, query, key, value)
        options = {**of_layer(settings, module.layer_idx), "scale": scaling}
        if prompt is not None:
            options["prefill"] = [prompt]
        if options.get("positions") == "entry":
            inputs["rope_frequencies"] = frequencies
            options["rope_layout"] = "adjacent" if model.config.model_type == "deepseek_v2" else "half"
        result, margin = attend(inputs, options)
        margins.append(margin)
        return result["out"].to(query.dtype), None

    attentions = [layer.self_attn for layer in model.model.layers]
    for a in attentions:
        if hasattr(a, "expand_kv"):
            def keep(latent, k_rope, a=a, original=a.expand_kv):
                a.latents = (latent, k_rope)
                return original(latent, k_rope)
            a.expand_kv = keep
    ALL_ATTENTION_FUNCTIONS.register("lca_golden", interface)
    before = model.config._attn_implementation
    model.config._attn_implementation = "lca_golden"
    try:
        yield margins
    finally:
        model.config._attn_implementation = before
        for a in attentions:
            a.__dict__.pop("expand_kv", None)


def make(case, name, settings, prompt=None, n=64, out=None):
    folder = MODELS / case
    with quiet():
        model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager",
                                                     dtype=torch.float32).eval()
    save_condensed(case, model, name, settings, prompt, n, out or folder / f"golden_lca_{name}.safetensors")


def save_condensed(case, model, name, settings, prompt, n, out, frequencies=None, router=ROUTER_MARGIN):
    moe = model.config.model_type == "deepseek_v2"
    selects = settings["method"] == "lca" and (
        settings["positional_pool"] == "select" or "select" in settings["semantic_pool"])
    for attempt in range(1000):
        rng = seeded(f"{case}/{name}/{attempt}")
        tokens = torch.from_numpy(rng.randint(0, model.config.vocab_size, size=n))
        with condensed(model, settings, prompt, frequencies=frequencies) as margins:
            logits = logits_of(model, tokens)
            if moe and router_margin(model, tokens) < router:
                continue
        if not selects or min(margins) > SELECT_MARGIN:
            break
    else:
        raise RuntimeError(f"{case} {name}: every draw has a near tie")
    dense = logits_of(model, tokens)
    save_file({"tokens": tokens.to(torch.int32), "logits": logits.contiguous(),
               "prompt_tokens": torch.tensor([prompt or n], dtype=torch.int32)},
              out, metadata={"lca": json.dumps(settings)})
    same = int((dense - logits).abs().amax(dim=-1).lt(1e-4).sum())
    print(f"{case:14s} lca {name:14s} max|logit| {logits.abs().max():6.2f}  margin {min(margins):.1e}  "
          f"like dense at {same} of {n} positions, elsewhere up to {(dense - logits).abs().max():.2g}", flush=True)


def make_checkpoint_with_settings():
    """llama's weights under a config that carries `lca` settings of its own."""
    folder = MODELS / "llama_lca"
    folder.mkdir(exist_ok=True)
    config = json.loads((MODELS / "llama" / "config.json").read_text())
    config["lca"] = PER_LAYER
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "same_weights_as").write_text("llama\n")
    make("llama", "per_layer", PER_LAYER, out=folder / "golden_lca_per_layer.safetensors")


def make_all(only=""):
    for case in ("llama", "deepseek_v2", "minicpm3"):
        if only in case:
            for name, (settings, prompt) in SETTINGS.items():
                make(case, name, settings, prompt)
    if only in "llama_lca":
        make_checkpoint_with_settings()


if __name__ == "__main__":
    make_all()
