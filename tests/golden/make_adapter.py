#!/usr/bin/env python3
"""Writes adapter/: two small adapters as PEFT saves them, and scales.json, the scale PEFT gives each module."""

import json
import pathlib
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import golden_files

CASES = {
    "plain": dict(
        r=2,
        lora_alpha=3,
        target_modules=["q_proj", "v_proj", "down_proj"],
        rank_pattern={"layers.1.self_attn.q_proj": 3, r"^model\.layers\.\d+\.mlp\.down_proj": 1, "proj": 7},
        alpha_pattern={"v_proj": 5, r"layers\.0\..*down_proj": 16},
    ),
    "rslora": dict(r=4, lora_alpha=6, target_modules=["o_proj", "gate_proj"], use_rslora=True, rank_pattern={"o_proj": 2}),
}


def make(root):
    torch.manual_seed(3)
    scales = {}
    for name, fields in CASES.items():
        model = LlamaForCausalLM(
            LlamaConfig(hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, vocab_size=16)
        )
        model.name_or_path = "tiny/llama"
        model = get_peft_model(model, LoraConfig(bias="none", task_type="CAUSAL_LM", init_lora_weights=False, **fields))
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            target = root / "adapter" / name
            target.mkdir(parents=True, exist_ok=True)
            # PEFT keeps the modules in a set, whose order changes from run to run.
            config = json.loads((pathlib.Path(folder) / "adapter_config.json").read_text())
            config["target_modules"] = fields["target_modules"]
            (target / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True))
            weights = "adapter_model.safetensors"
            (target / weights).write_bytes((pathlib.Path(folder) / weights).read_bytes())
        scales[name] = {
            module.removeprefix("base_model.model."): layer.scaling["default"]
            for module, layer in model.named_modules()
            if isinstance(getattr(layer, "scaling", None), dict)
        }
    (root / "adapter" / "scales.json").write_text(json.dumps(scales, indent=1) + "\n")


if __name__ == "__main__":
    golden_files.main(__doc__, make, ["adapter/**/*"])
