"""One bf16 checkpoint of each architecture with weights scaled as trained models have them.

The other cases exaggerate on purpose, so that a mistake shows; they also exaggerate rounding. These
are for the path that rounds every factor of a product to bfloat16.
"""

import make_models_common as common
import torch
from make_models_common import (MODELS, draw_tokens, golden_logits, new_model, rebuilt, save_model, say,
                                write_golden)
from make_models_llama import BASE
from make_models_mla import DEEPSEEK_CASES, MINICPM_CASES, router_margin
from transformers import DeepseekV2Config, LlamaConfig, MiniCPM3Config, Qwen2Config

# Rounding may not turn a choice of experts around: margins well above what it can move.
ROUTER_MARGIN = 0.008


def calm_weight(name, shape, rng):
    x = torch.from_numpy(rng.standard_normal(shape))
    if "norm" in name:
        return 1.0 + 0.1 * x
    if name.endswith("bias"):
        return 0.1 * x
    if "embed_tokens" in name:
        return x
    fan_in = shape[-1]
    if any(part in name for part in ("o_proj", "down_proj")):
        return 0.5 * fan_in ** -0.5 * x
    if "mlp.gate.weight" in name:
        return 1.5 * fan_in ** -0.5 * x
    return fan_in ** -0.5 * x


CASES = {
    "calm_llama": LlamaConfig(**BASE),
    "calm_qwen2": Qwen2Config(**BASE),
    "calm_deepseek_v2": DeepseekV2Config(**{
        **DEEPSEEK_CASES["deepseek_v2"][0], "n_routed_experts": 4, "num_experts_per_tok": 2}),
    "calm_minicpm3": MiniCPM3Config(**{**MINICPM_CASES["minicpm3"][0], "scale_emb": 1.0}),
}


def make_all(only=""):
    ordinary, common.weight_for = common.weight_for, calm_weight
    try:
        make_cases(only)
    finally:
        common.weight_for = ordinary


def make_cases(only):
    for name, config in CASES.items():
        if not name.startswith(only):
            continue
        for attempt in range(3000):
            model = new_model(config, f"{name}/{attempt}", torch.bfloat16)
            tokens = draw_tokens(f"{name}/{attempt}", 24, config.vocab_size)
            if (config.model_type != "deepseek_v2"
                    or router_margin(rebuilt(model, torch.float32), tokens) > ROUTER_MARGIN):
                break
        else:
            raise SystemExit(f"{name}: no draw keeps the router's choices apart")
        logits, noise = golden_logits(model, tokens)
        save_model(model, MODELS / name)
        write_golden(MODELS / name, tokens, logits)
        say(name, logits, noise, f"(draw {attempt})")


if __name__ == "__main__":
    make_all()
