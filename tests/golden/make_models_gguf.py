"""Tiny GGUF files with golden logits, laid out as llama.cpp's conversion writes them."""

import math
import shutil

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Q
from transformers import DeepseekV2Config, LlamaConfig, Qwen2Config

from make_models_common import (MODELS, blank_model, draw_tokens, golden_logits, new_model, rebuilt, say, seeded,
                                write_golden)
from make_models_mla import ROUTER_MARGIN, DEEPSEEK, deepseek_model, minicpm_model, router_margin
from make_models_llama import LLAMA, QWEN2

NAMES = {  # Hugging Face name inside a layer -> GGUF name
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp", "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
       "lm_head.weight": "output.weight"}


def permuted(weight, heads):
    """Half-split RoPE rows to adjacent pairs: i -> 2i, i + d/2 -> 2i + 1."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(
        weight.shape)


def unpermuted(weight, heads):
    return weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(
        weight.shape)


def gguf_name(name):
    if name in TOP:
        return TOP[name]
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{NAMES[stem]}.{kind}"


def gguf_tensors(model, fused=False):
    """Name -> float32 array, as llama.cpp's conversion names, stacks, splits and permutes them."""
    config = model.config
    out = {}
    for name, value in model.state_dict().items():
        w = value.detach().float()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if ".mlp.experts." in name:
            layer = name.split(".")[2]
            if name.endswith("gate_up_proj"):
                gate, up = w.chunk(2, dim=1)
                out[f"blk.{layer}.ffn_gate_exps.weight"], out[f"blk.{layer}.ffn_up_exps.weight"] = gate, up
            else:
                out[f"blk.{layer}.ffn_down_exps.weight"] = w
            continue
        target = gguf_name(name)
        if config.model_type == "llama" and ".q_proj." in name:
            w = permuted(w, config.num_attention_heads)
        if config.model_type == "llama" and ".k_proj." in name:
            w = permuted(w, config.num_key_value_heads)
        if config.model_type == "deepseek_v2" and "kv_b_proj" in name and not fused:
            # [heads, nope + v, latent]: keys transposed, so that a query meets the latent directly
            both = w.view(config.num_attention_heads, -1, config.kv_lora_rank)
            keys, values = both.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
            out[target.replace("attn_kv_b", "attn_k_b")] = keys.transpose(1, 2)
            out[target.replace("attn_kv_b", "attn_v_b")] = values
            continue
        out[target] = w
    rope = config.rope_parameters
    if rope["rope_type"] == "llama3":
        out["rope_freqs.weight"] = torch.tensor(llama3_divisors(config), dtype=torch.float32)
    if rope["rope_type"] == "longrope":
        out["rope_factors_long.weight"] = torch.tensor(rope["long_factor"], dtype=torch.float32)
        out["rope_factors_short.weight"] = torch.tensor(rope["short_factor"], dtype=torch.float32)
    return {k: v.contiguous().numpy() for k, v in out.items()}


def llama3_divisors(config):
    rope, dim = config.rope_parameters, config.head_dim
    length, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    result = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / dim)
        if wavelength < length / high:
            result.append(1.0)
        elif wavelength > length / low:
            result.append(rope["factor"])
        else:
            smooth = (length / wavelength - low) / (high - low)
            result.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return result


def add_settings(writer, config, file_type, fused):
    rope = config.rope_parameters
    kind = config.model_type
    writer.add_type("model")
    writer.add_name(f"tiny {kind}")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    split = kind == "deepseek_v2" and not fused
    writer.add_head_count_kv(1 if split else config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if kind != "qwen2":  # its conversion leaves the number to the token table
        writer.add_vocab_size(config.vocab_size)
    if kind != "minicpm3":  # its conversion leaves theta out: 10000
        writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for field, add in (("beta_fast", writer.add_rope_scaling_yarn_beta_fast),
                           ("beta_slow", writer.add_rope_scaling_yarn_beta_slow),
                           ("attention_factor", writer.add_rope_scaling_yarn_attn_factor)):
            if rope.get(field) is not None:
                add(rope[field])
    if kind in ("llama", "qwen2"):
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        if kind == "llama":
            writer.add_rope_dimension_count(width)
            writer.add_key_length(width)
            writer.add_value_length(width)
    else:
        whole = config.qk_nope_head_dim + config.qk_rope_head_dim
        if config.q_lora_rank is not None:
            writer.add_q_lora_rank(config.q_lora_rank)
        writer.add_kv_lora_rank(config.kv_lora_rank)
        writer.add_rope_dimension_count(config.qk_rope_head_dim)
        if split:
            writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
            writer.add_value_length(config.kv_lora_rank)
            writer.add_key_length_mla(whole)
            writer.add_value_length_mla(config.v_head_dim)
        else:
            writer.add_key_length(whole)
            if kind == "deepseek_v2":
                writer.add_value_length(config.v_head_dim)
    if kind == "deepseek_v2":
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_count(config.n_routed_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        if rope.get("mscale_all_dim") is not None:
            writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def add_tokenizer(writer, vocab):
    """A table of single characters: enough for a file to be complete."""
    tokens = ["<unk>", "<s>", "</s>"] + [chr(33 + i) for i in range(vocab - 4)] + ["ab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([2, 3, 3] + [1] * (vocab - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)


ARCH = {"llama": "llama", "qwen2": "qwen2", "deepseek_v2": "deepseek2", "minicpm3": "minicpm3"}


def write_gguf(folder, config, tensors, types, file_type, fused=False, split=0, file="model.gguf"):
    """types: name -> quantisation type; arrays given as bytes are blocks already."""
    writer = gguf.GGUFWriter(str(folder / file), ARCH[config.model_type], split_max_tensors=split)
    add_settings(writer, config, file_type, fused)
    add_tokenizer(writer, config.vocab_size)
    for name, array in tensors.items():
        kind = types.get(name, Q.F32)
        if array.dtype == np.uint8:
            writer.add_tensor(name, array, raw_dtype=kind)
        elif kind == Q.F32:
            writer.add_tensor(name, array)
        elif kind == Q.F16:
            writer.add_tensor(name, array.astype(np.float16))
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_from_gguf(paths, config):
    """LlamaForCausalLM with the file's weights, dequantised by the gguf package."""
    model = blank_model(config)
    wanted = {gguf_name(k): k for k in model.state_dict()}
    state = {}
    for path in paths:
        for t in gguf.GGUFReader(str(path)).tensors:
            if t.name == "rope_freqs.weight":
                continue
            w = torch.from_numpy(np.array(gguf.quants.dequantize(t.data, t.tensor_type), dtype=np.float32))
            w = w.reshape(tuple(int(n) for n in reversed(t.shape)))
            if ".attn_q." in t.name:
                w = unpermuted(w, config.num_attention_heads)
            if ".attn_k." in t.name:
                w = unpermuted(w, config.num_key_value_heads)
            state[wanted[t.name]] = w.contiguous()
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model


def fresh(name):
    folder = MODELS / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def finish(folder, model, tokens):
    logits, noise = golden_logits(model, tokens)
    write_golden(folder, tokens, logits)
    say(folder.name, logits, noise)


def llama_model(name):
    fields, n, *_ = {**LLAMA, **QWEN2}[name]
    fields = {k: v for k, v in fields.items() if v is not None}
    config = (LlamaConfig if name.startswith("llama") else Qwen2Config)(**fields)
    return new_model(config, name), draw_tokens(name, n, config.vocab_size)


def make_plain():
    """The Hugging Face cases' own weights in float32: same logits."""
    for source in ("llama", "llama_llama3", "llama_linear", "llama_yarn", "qwen2", "qwen2_tied_yarn"):
        model, tokens = llama_model(source)
        folder = fresh(f"gguf_{source}")
        write_gguf(folder, model.config, gguf_tensors(model), {}, gguf.LlamaFileType.ALL_F32)
        if source.startswith("llama"):  # the way back must be exact
            again = llama_from_gguf([folder / "model.gguf"], model.config)
            assert all(torch.equal(a, b) for a, b in zip(again.state_dict().values(), model.state_dict().values()))
        finish(folder, model, tokens)
    model, tokens = llama_model("llama")
    folder = fresh("gguf_llama_split")
    tensors = gguf_tensors(model)
    write_gguf(folder, model.config, tensors, {}, gguf.LlamaFileType.ALL_F32, split=(len(tensors) + 1) // 2)
    assert len(list(folder.glob("*-of-00002.gguf"))) == 2
    finish(folder, model, tokens)


def make_quantised():
    files = gguf.LlamaFileType
    kinds = {"f16": (Q.F16, files.MOSTLY_F16), "bf16": (Q.BF16, files.MOSTLY_BF16),
             "q8_0": (Q.Q8_0, files.MOSTLY_Q8_0), "q4_0": (Q.Q4_0, files.MOSTLY_Q4_0),
             "q4_1": (Q.Q4_1, files.MOSTLY_Q4_1), "q5_0": (Q.Q5_0, files.MOSTLY_Q5_0),
             "q5_1": (Q.Q5_1, files.MOSTLY_Q5_1)}
    model, tokens = llama_model("llama")
    tensors = gguf_tensors(model)
    for name, (kind, file_type) in kinds.items():
        folder = fresh(f"gguf_llama_{name}")
        types = {k: kind for k, v in tensors.items() if v.ndim == 2}
        write_gguf(folder, model.config, tensors, types, file_type)
        finish(folder, llama_from_gguf([folder / "model.gguf"], model.config), tokens)


def random_blocks(rng, kind, rows, columns, spread):
    """Any bits are valid quants; only the half-precision scales must be chosen."""
    blocks = rows * columns // 256
    size = gguf.GGML_QUANT_SIZES[kind][1]
    data = rng.randint(0, 256, size=(blocks, size)).astype(np.uint8)
    d = spread * rng.uniform(0.5, 1.5, size=blocks)
    half = lambda x: x.astype(np.float16).view(np.uint8).reshape(blocks, 2)  # noqa: E731
    if kind == Q.Q6_K:
        data[:, -2:] = half(d / 1350)
    else:  # scale of the quants, scale of the minima: so that values centre on 0
        levels = 15 if kind == Q.Q4_K else 31
        data[:, 0:2] = half(d / (31 * 0.6 * levels))
        data[:, 2:4] = half(d / (31 * 0.6 * levels) * levels / 2)
    return data.reshape(rows, columns // 256 * size)


def k_config():
    return LlamaConfig(hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=8,
                       num_key_value_heads=2, head_dim=32, vocab_size=96, max_position_embeddings=128,
                       rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)


def make_k_quants():
    """Hidden width 256, one layer, random blocks."""
    name = "gguf_llama_k"
    config = k_config()
    rng = seeded(name)
    shapes = {k: v.shape for k, v in gguf_tensors(blank_model(config)).items()}
    kinds = {"attn_q": Q.Q4_K, "attn_k": Q.Q5_K, "attn_v": Q.Q6_K, "attn_output": Q.Q4_K, "ffn_gate": Q.Q4_K,
             "ffn_up": Q.Q5_K, "ffn_down": Q.Q6_K, "token_embd": Q.Q5_K, "output": Q.Q6_K}
    tensors, types = {}, {}
    for key, shape in shapes.items():
        stem = key.removesuffix(".weight").split(".")[-1]
        if len(shape) == 1:
            tensors[key] = (1 + 0.25 * rng.standard_normal(shape)).astype(np.float32)
        else:
            types[key] = kinds[stem]
            spread = {"output": 0.25, "token_embd": 0.5}.get(stem, 0.08)
            tensors[key] = random_blocks(rng, kinds[stem], *shape, spread)
    folder = fresh(name)
    write_gguf(folder, config, tensors, types, gguf.LlamaFileType.MOSTLY_Q4_K_M)
    finish(folder, llama_from_gguf([folder / "model.gguf"], config), draw_tokens(name, 40, 96))


def make_mla():
    model, tokens, _ = deepseek_model("deepseek_v2")
    for name, fused in (("gguf_deepseek2", False), ("gguf_deepseek2_fused", True)):
        folder = fresh(name)
        write_gguf(folder, model.config, gguf_tensors(model, fused), {}, gguf.LlamaFileType.ALL_F32, fused=fused)
        finish(folder, model, tokens)
    # Its own weights: llama.cpp norms the latents with the file's eps, transformers always with 1e-6.
    name = "gguf_deepseek2_q_lora"
    config = DeepseekV2Config(**{**DEEPSEEK, "q_lora_rank": 20, "num_hidden_layers": 2, "routed_scaling_factor": 2.5})
    for attempt in range(1000):
        model = new_model(config, f"{name}/{attempt}")
        tokens = draw_tokens(f"{name}/{attempt}", 48, config.vocab_size)
        if router_margin(rebuilt(model, torch.float32), tokens) >= ROUTER_MARGIN:
            break
    folder = fresh(name)
    write_gguf(folder, config, gguf_tensors(model), {}, gguf.LlamaFileType.ALL_F32)
    finish(folder, model, tokens)
    model, tokens, _ = minicpm_model("minicpm3")
    folder = fresh("gguf_minicpm3")
    write_gguf(folder, model.config, gguf_tensors(model), {}, gguf.LlamaFileType.ALL_F32)
    finish(folder, model, tokens)


def make_all(only=""):
    make_plain()
    make_quantised()
    make_k_quants()
    make_mla()


if __name__ == "__main__":
    make_all()
