"""PEFT LoRA adapters on the tiny checkpoints, with golden logits of base and adapter together."""

import json
import shutil
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from make_models_common import MODELS, draw_tokens, logits_of, quiet, rebuilt, say, seeded, write_golden
from make_models_gguf import k_config, llama_from_gguf, llama_model
from make_models_mla import ROUTER_MARGIN, router_margin

LLAMA_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
MLA_TARGETS = ["q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]

# name: (base, n, LoraConfig fields)
ADAPTERS = {
    "adapter_llama": ("llama", 48, dict(r=4, lora_alpha=8, target_modules=LLAMA_TARGETS)),
    "adapter_llama_patterns": ("llama", 48, dict(
        r=4, lora_alpha=8, use_rslora=True, target_modules=LLAMA_TARGETS,
        rank_pattern={"q_proj": 2, "layers.1.mlp.down_proj": 6},
        alpha_pattern={"v_proj": 3, "layers.0.self_attn.o_proj": 16})),
    "adapter_llama_one_layer": ("llama", 48, dict(
        r=3, lora_alpha=6, target_modules=["q_proj", "v_proj"], layers_to_transform=[1])),
    "adapter_deepseek_v2": ("deepseek_v2", 48, dict(r=4, lora_alpha=8, target_modules=MLA_TARGETS)),
    # gate_proj, up_proj and down_proj make PEFT adapt transformers' stacked experts, in a form of
    # its own: `mlp.experts.base_layer.lora_A` (gate and up of all experts), `mlp.experts.lora_A`.
    "adapter_deepseek_v2_stacked": ("deepseek_v2", 48, dict(
        r=1, lora_alpha=2, target_modules=["q_proj", "gate_proj", "up_proj", "down_proj"])),
    "adapter_minicpm3": ("minicpm3", 48, dict(
        r=4, lora_alpha=8, target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj",
                                           "o_proj", "gate_proj", "up_proj", "down_proj"])),
    # Beside packed weights, and in Llama's GGUF files beside rows of q and k in another order.
    "adapter_gguf_q4_1": ("gguf_llama_q4_1", 48, dict(r=16, lora_alpha=32, target_modules=LLAMA_TARGETS)),
    "adapter_gguf_q8_0": ("gguf_llama_q8_0", 48, dict(r=1, lora_alpha=4, target_modules=["q_proj", "k_proj"])),
    "adapter_gguf_k": ("gguf_llama_k", 40, dict(r=24, lora_alpha=12, use_rslora=True, target_modules=LLAMA_TARGETS)),
    "adapter_gguf_qwen2": ("gguf_qwen2", 48, dict(r=5, lora_alpha=7, target_modules=["q_proj", "k_proj", "down_proj"])),
    "adapter_gguf_deepseek2": ("gguf_deepseek2", 48, dict(r=8, lora_alpha=8, target_modules=MLA_TARGETS)),
    "adapter_gguf_minicpm3": ("gguf_minicpm3", 48, dict(
        r=7, lora_alpha=14, target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "gate_proj"])),
    # Of a trained adapter's size, for the path that rounds products; stored in bf16.
    "calm_adapter_llama": ("calm_llama", 24, dict(r=16, lora_alpha=32, target_modules=LLAMA_TARGETS)),
    "calm_adapter_qwen2": ("calm_qwen2", 24, dict(r=9, lora_alpha=18, target_modules=LLAMA_TARGETS)),
    "calm_adapter_minicpm3": ("calm_minicpm3", 24, dict(
        r=16, lora_alpha=32, target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj",
                                             "gate_proj", "up_proj", "down_proj"])),
}

# GGUF files with the float32 weights of a folder.
TWINS = {"gguf_qwen2": "qwen2", "gguf_deepseek2": "deepseek_v2", "gguf_minicpm3": "minicpm3"}


def load(base, dtype):
    base = TWINS.get(base, base)
    file = MODELS / base / "model.gguf"
    if file.exists():
        config = k_config() if base == "gguf_llama_k" else llama_model("llama")[0].config
        return rebuilt(llama_from_gguf([file], config), dtype)
    with quiet():
        return AutoModelForCausalLM.from_pretrained(
            MODELS / base, attn_implementation="eager", experts_implementation="eager", dtype=dtype).eval()


def adapted(base, fields, seed, dtype=torch.float32):
    model = get_peft_model(load(base, dtype), LoraConfig(task_type="CAUSAL_LM", **fields)).eval()
    rng = seeded(seed)
    with torch.no_grad():
        for key, p in model.named_parameters():
            if "lora_" in key:
                x = torch.from_numpy(rng.standard_normal(tuple(p.shape)))
                if base.startswith("calm"):
                    p.copy_(((p.shape[1] ** -0.5 if "lora_A" in key else 0.02) * x).to(torch.bfloat16).float())
                else:
                    p.copy_(((0.3 if "lora_A" in key else 0.1) * x).to(torch.float32))
    return model


def make(name):
    base, n, fields = ADAPTERS[name]
    for attempt in range(1000):
        seed = f"{name}/{attempt}"
        model = adapted(base, fields, seed)
        tokens = draw_tokens(seed, n, model.config.vocab_size)
        if "deepseek" not in base or router_margin(model.base_model.model, tokens) >= ROUTER_MARGIN:
            break
    else:
        raise RuntimeError(f"{name}: every draw has a near tie")
    folder = MODELS / name
    shutil.rmtree(folder, ignore_errors=True)
    model.peft_config["default"].base_model_name_or_path = f"../{base}"
    with quiet():
        model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    if base.startswith("calm"):
        file = folder / "adapter_model.safetensors"
        save_file({k: v.to(torch.bfloat16) for k, v in load_file(file).items()}, file, metadata={"format": "pt"})
    written = json.loads((folder / "adapter_config.json").read_text())
    for key in ("target_modules", "target_parameters"):  # sets: their order changes from run to run
        written[key] = written[key] and sorted(written[key])
    (folder / "adapter_config.json").write_text(json.dumps(written, indent=2) + "\n")
    (folder / "base_model").write_text(base + "\n")
    logits = logits_of(model, tokens)
    exact = logits_of(adapted(base, fields, seed, torch.float64), tokens)
    write_golden(folder, tokens, logits)
    plain = logits_of(load(base, torch.float32), tokens)
    say(name, logits, float((logits - exact).abs().max() / exact.abs().max()),
        f"without the adapter up to {(plain - logits).abs().max():.2g} away")


def make_experts():
    """An adapter of single experts, as PEFT writes it for a model whose experts are modules of
    their own (DeepSeek's published code). PEFT cannot load it onto transformers' stacked experts,
    so the golden merges it into the weights: W + alpha/r · B·A."""
    name, base, n, rank, alpha = "adapter_deepseek_v2_experts", "deepseek_v2", 48, 2, 4
    weights = load_file(MODELS / base / "model.safetensors")
    wanted = [k for k in weights if "mlp" in k and k.endswith("_proj.weight")]
    for attempt in range(1000):
        rng = seeded(f"{name}/{attempt}")
        adapter, merged = {}, dict(weights)
        for key in wanted:
            rows, columns = weights[key].shape
            a = torch.from_numpy(0.3 * rng.standard_normal((rank, columns))).float()
            b = torch.from_numpy(0.15 * rng.standard_normal((rows, rank))).float()
            stem = "base_model.model." + key.removesuffix(".weight")
            adapter[f"{stem}.lora_A.weight"], adapter[f"{stem}.lora_B.weight"] = a, b
            merged[key] = (weights[key].double() + alpha / rank * (b.double() @ a.double())).float()
        with tempfile.TemporaryDirectory() as scratch:
            shutil.copy(MODELS / base / "config.json", scratch)
            save_file(merged, f"{scratch}/model.safetensors", metadata={"format": "pt"})
            model = load(scratch, torch.float32)
            exact = load(scratch, torch.float64)
        tokens = draw_tokens(f"{name}/{attempt}", n, model.config.vocab_size)
        if router_margin(model, tokens) >= ROUTER_MARGIN:
            break
    else:
        raise RuntimeError(f"{name}: every draw has a near tie")
    folder = MODELS / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    save_file(adapter, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"base_model_name_or_path": f"../{base}", "bias": "none", "fan_in_fan_out": False,
              "inference_mode": True, "lora_alpha": alpha, "lora_dropout": 0.0, "modules_to_save": None,
              "peft_type": "LORA", "r": rank, "target_modules": ["down_proj", "gate_proj", "up_proj"],
              "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "base_model").write_text(base + "\n")
    logits = logits_of(model, tokens)
    noise = (logits - logits_of(exact, tokens)).abs().max() / logits.abs().max()
    write_golden(folder, tokens, logits)
    plain = logits_of(load(base, torch.float32), tokens)
    say(name, logits, float(noise), f"without the adapter up to {(plain - logits).abs().max():.2g} away")


def make_all(only=""):
    if only in "adapter_deepseek_v2_experts":
        make_experts()
    for name in ADAPTERS:
        if only in name:
            make(name)


if __name__ == "__main__":
    make_all()
