"""Tiny deepseek_v2 and minicpm3 checkpoints with golden logits."""

import torch
from transformers import DeepseekV2Config, MiniCPM3Config

from make_models_common import (MODELS, draw_tokens, golden_logits, logits_of, new_model, rebuilt, save_model,
                                say, write_golden, write_twin)

ROUTER_MARGIN = 1e-3


def rope(kind, theta=10000.0, **fields):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **fields}}


YARN = dict(factor=4.0, original_max_position_embeddings=16, beta_fast=32.0, beta_slow=1.0)
DEEPSEEK = dict(
    vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=4, kv_lora_rank=24, q_lora_rank=None, qk_nope_head_dim=16, qk_rope_head_dim=8,
    v_head_dim=12, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=16,
    n_shared_experts=2, first_k_dense_replace=1, topk_method="greedy", norm_topk_prob=False,
    routed_scaling_factor=1.0, rms_norm_eps=1e-6, max_position_embeddings=64, tie_word_embeddings=False,
    bos_token_id=1, eos_token_id=2, **rope("yarn", mscale=0.707, mscale_all_dim=0.707, **YARN))
GROUPS = dict(topk_method="group_limited_greedy", n_group=4, topk_group=2, routed_scaling_factor=16.0,
              num_hidden_layers=2)

# name: (config, n, dtype, shard size)
DEEPSEEK_CASES = {
    "deepseek_v2": (DEEPSEEK, 56, torch.float32, None),
    # A large eps shows which norms use it: not the two on the latents.
    "deepseek_v2_q_lora": ({**DEEPSEEK, "q_lora_rank": 20, "rms_norm_eps": 1e-2, "num_hidden_layers": 2,
                            **rope("yarn", theta=100.0, mscale=0.707, mscale_all_dim=0.707,
                                   **{**YARN, "beta_fast": 0.5, "beta_slow": 0.1})},
                           48, torch.float32, None),
    "deepseek_v2_groups": ({**DEEPSEEK, **GROUPS, "q_lora_rank": 20}, 48, torch.float32, None),
    "deepseek_v2_mscale": ({**DEEPSEEK, "num_hidden_layers": 2, "first_k_dense_replace": 0,
                            "routed_scaling_factor": 2.5,
                            **rope("yarn", mscale=1.0, mscale_all_dim=0.4, **YARN)},
                           48, torch.float32, None),
    "deepseek_v2_yarn_plain": ({**DEEPSEEK, "num_hidden_layers": 2, **rope("yarn", **YARN)},
                               48, torch.float32, None),
    "deepseek_v2_default": ({**DEEPSEEK, "num_hidden_layers": 2, "n_shared_experts": 1, **rope("default")},
                            48, torch.float32, None),
    "deepseek_v2_bf16": (DEEPSEEK, 48, torch.bfloat16, "40KB"),
}


def lists(short, long):
    return dict(short_factor=short, long_factor=long)


SHORT = [1.0, 1.2, 1.9, 3.1]
LONG = [1.1, 2.3, 5.0, 9.5]
# scale_emb, scale_depth and dim_model_base as published: GGUF files have no keys for them.
MINICPM = dict(
    vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2,
    num_key_value_heads=2, q_lora_rank=24, kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8,
    v_head_dim=None, scale_emb=12, scale_depth=1.4, dim_model_base=256, rms_norm_eps=1e-5,
    max_position_embeddings=64, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
    **rope("longrope", original_max_position_embeddings=64, **lists(SHORT, SHORT)))
MINICPM_CASES = {
    "minicpm3": (MINICPM, 56, [], torch.float32, 0.08),
    "minicpm3_longrope": ({**MINICPM, "num_hidden_layers": 2, "scale_emb": 3.5, "scale_depth": 0.9,
                           "dim_model_base": 24, "rms_norm_eps": 1e-2, "v_head_dim": 10,
                           "max_position_embeddings": 96,
                           **rope("longrope", original_max_position_embeddings=24, **lists(SHORT, LONG))},
                          60, [24, 25], torch.float32, 0.5),
    "minicpm3_bf16": ({**MINICPM, "num_hidden_layers": 2}, 48, [], torch.bfloat16, 0.08),
}


def router_margin(model, tokens):
    """The smallest gap between a chosen expert's (or group's) score and the best one left out."""
    gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
    seen = []
    hooks = [g.register_forward_hook(lambda module, _, out: seen.append((module, out[0]))) for g in gates]
    logits_of(model, tokens)
    for hook in hooks:
        hook.remove()
    gap = float("inf")
    for gate, logits in seen:
        scores = logits.double().softmax(dim=-1)
        if gate.topk_method == "group_limited_greedy":
            groups = scores.view(len(scores), gate.num_group, -1).amax(dim=-1)
            best = groups.sort(dim=-1, descending=True).values
            gap = min(gap, float((best[:, gate.topk_group - 1] - best[:, gate.topk_group]).min()))
            kept = groups >= best[:, gate.topk_group - 1:gate.topk_group]
            scores = scores * kept.repeat_interleave(gate.num_experts // gate.num_group, dim=-1)
        best = scores.sort(dim=-1, descending=True).values
        gap = min(gap, float((best[:, gate.top_k - 1] - best[:, gate.top_k]).min()))
    return gap


def deepseek_model(name):
    """The model of a case, its tokens, and how clear its router's choices are."""
    fields, n, dtype, _ = DEEPSEEK_CASES[name]
    config = DeepseekV2Config(**fields)
    for attempt in range(1000):
        model = new_model(config, f"{name}/{attempt}", dtype)
        tokens = draw_tokens(f"{name}/{attempt}", n, config.vocab_size)
        margin = router_margin(rebuilt(model, torch.float32), tokens)
        if margin >= ROUTER_MARGIN:
            return model, tokens, margin
    raise RuntimeError(f"{name}: every draw has a near tie")


def minicpm_model(name):
    fields, n, more, dtype, spread = MINICPM_CASES[name]
    config = MiniCPM3Config(**fields)
    model = new_model(config, name, torch.float32)
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        embedding.copy_(embedding * (spread / embedding.std()))
    return model.to(dtype), draw_tokens(name, n, config.vocab_size), more


def make_deepseek(name):
    model, tokens, margin = deepseek_model(name)
    shard = DEEPSEEK_CASES[name][3]
    folder = MODELS / name
    save_model(model, folder, **({"max_shard_size": shard} if shard else {}))
    logits, noise = golden_logits(model, tokens)
    write_golden(folder, tokens, logits)
    say(name, logits, noise, f"router margin {margin:.1e}")
    # Fields of the published files that change nothing.
    extra = {"moe_layer_freq": 1, "scoring_func": "softmax", "aux_loss_alpha": 0.001, "seq_aux": True, "ep_size": 1}
    if model.config.topk_method == "greedy":
        extra.update({"n_group": 1, "topk_group": 1})
    write_twin(folder, model, tokens, logits, "type", extra)


def make_minicpm(name):
    model, tokens, more = minicpm_model(name)
    folder = MODELS / name
    save_model(model, folder)
    logits, noise = golden_logits(model, tokens)
    write_golden(folder, tokens, logits)
    say(name, logits, noise)
    for short in more:
        part, noise = golden_logits(model, tokens[:short])
        write_golden(folder, tokens[:short], part, f"golden_{short}.safetensors")
        say(f"{name} [{short}]", part, noise, f"differs from the longer run by {(part - logits[:short]).abs().max():.2g}")
    write_twin(folder, model, tokens, logits, "type")


def make_all(only=""):
    for name in DEEPSEEK_CASES:
        if only in name:
            make_deepseek(name)
    for name in MINICPM_CASES:
        if only in name:
            make_minicpm(name)


if __name__ == "__main__":
    make_all()
