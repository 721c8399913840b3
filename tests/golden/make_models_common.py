"""What the make_models_*.py scripts share: drawing weights, golden logits, writing files."""

import contextlib
import io
import json
import logging
import os
import pathlib
import zlib

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

torch.set_num_threads(1)
logging.getLogger("transformers").setLevel(logging.ERROR)

# Elsewhere while make_models.py --check makes everything again.
MODELS = pathlib.Path(os.environ.get("GOLDEN_MODELS") or pathlib.Path(__file__).resolve().parent / "models")


def seeded(name):
    """numpy's RandomState stream is frozen by its maintainers; torch's generator is not."""
    return np.random.RandomState(zlib.crc32(name.encode()))


def draw_tokens(name, n, vocab):
    return torch.from_numpy(seeded(f"{name}/tokens").randint(0, vocab, size=n)).to(torch.int64)


def weight_for(name, shape, rng):
    """Weights large enough that logits spread and attention is far from uniform, yet small
    enough that rounding is not amplified from layer to layer."""
    x = torch.from_numpy(rng.standard_normal(shape))
    if "norm" in name:
        return 1.0 + 0.25 * x
    if name.endswith("bias"):
        return 0.4 * x
    fan_in = shape[-1]
    if "embed_tokens" in name:
        return 0.7 * x
    if "lm_head" in name:
        return 4.0 * fan_in ** -0.5 * x
    if "mlp.gate.weight" in name:  # the router
        return 2.0 * fan_in ** -0.5 * x
    if any(s in name for s in ("q_proj", "k_proj", "q_b_proj")):
        return 1.8 * fan_in ** -0.5 * x
    return 1.3 * fan_in ** -0.5 * x


def blank_model(config):
    experts = {"experts_implementation": "eager"} if config.model_type == "deepseek_v2" else {}
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager", **experts).eval()


def new_model(config, name, dtype=torch.float32):
    """A model with weights drawn from `name`, in parameter order, rounded to `dtype`."""
    model = blank_model(config)
    model = model.to(dtype)
    rng = seeded(name)
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.copy_(weight_for(key, tuple(p.shape), rng).to(torch.float32).to(dtype))
    return model


def rebuilt(model, dtype, config=None):
    """The same weights computed in another dtype, rotary tables freshly made."""
    twin = blank_model(config or model.config)
    twin = twin.to(dtype)
    twin.load_state_dict({k: v.to(dtype) for k, v in model.state_dict().items()})
    # `.to` also narrows the frequencies; make them again in float32.
    fresh = type(twin.model.rotary_emb)(twin.config)
    twin.model.rotary_emb = fresh
    return twin


@torch.no_grad()
def logits_of(model, tokens):
    return model(input_ids=tokens[None], use_cache=False).logits[0]


def golden_logits(model, tokens, config=None):
    """float32 logits, after checking them against float64."""
    result = logits_of(rebuilt(model, torch.float32, config), tokens)
    exact = logits_of(rebuilt(model, torch.float64, config), tokens)
    noise = float((result.double() - exact).abs().max() / exact.abs().max())
    assert torch.isfinite(result).all()
    return result, noise


def write_golden(folder, tokens, logits, file="golden.safetensors", metadata=None):
    save_file({"tokens": tokens.to(torch.int32).contiguous(), "logits": logits.float().contiguous()},
              folder / file, metadata=metadata)


def quiet():
    return contextlib.redirect_stderr(io.StringIO())


def save_model(model, folder, **options):
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*"):
        if old.is_file():
            old.unlink()
    with quiet():
        model.save_pretrained(folder, **options)
    (folder / "generation_config.json").unlink(missing_ok=True)


def older_config(config, type_key):
    """config.json as transformers 4 wrote it: `rope_theta` beside `rope_scaling`."""
    old = dict(config)
    rope = dict(old.pop("rope_parameters"))
    old["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    keys = {"type": ["type"], "rope_type": ["rope_type"], "both": ["type", "rope_type"]}[type_key]
    old["rope_scaling"] = None if kind == "default" else {**{k: kind for k in keys}, **rope}
    old["torch_dtype"] = old.pop("dtype")
    old["transformers_version"] = "4.46.0"
    if old["model_type"] in ("deepseek_v2", "minicpm3"):  # the published files lack these
        old.pop("head_dim", None)
        old.pop("qk_head_dim", None)
    return old


def write_twin(folder, model, tokens, logits, type_key="type", extra=None):
    """FOLDER_v4: the same weights under a transformers-4 config. transformers 5 must read it to
    the same logits."""
    twin = folder.with_name(folder.name + "_v4")
    twin.mkdir(exist_ok=True)
    old = older_config(json.loads((folder / "config.json").read_text()), type_key)
    old.update(extra or {})
    if old.get("layer_types", 0) is None:  # transformers 4 had no such field
        del old["layer_types"]
    (twin / "config.json").write_text(json.dumps(old, indent=2) + "\n")
    (twin / "same_weights_as").write_text(folder.name + "\n")
    with quiet():
        read = AutoConfig.from_pretrained(twin)
    again = logits_of(rebuilt(model, torch.float32, read), tokens)
    assert torch.equal(again, logits), (folder.name, (again - logits).abs().max())


def say(name, logits, noise, extra=""):
    print(f"{name:34s} max|logit| {logits.abs().max():6.2f}  std {logits.std():5.2f}  "
          f"float32 noise {noise:.1e} {extra}", flush=True)
    assert noise < 1e-5, name
