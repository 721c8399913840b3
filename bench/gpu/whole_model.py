#!/usr/bin/env python3
"""Measures a whole model on one GPU, ours and Hugging Face transformers', in one run.

    bench/gpu/whole_model.py LCA_PROGRAM OUT.json [--no-peer]

DeepSeek-V2-Lite's shape with random weights in bf16 on both sides: first token by length (LCA, dense,
transformers), decoding by depth and batch, memory; then SmolLM2's shape. The peer needs PyTorch and
transformers. OUT.json is written after every part, so that what was measured is kept."""
import json
import pathlib
import subprocess
import sys
import time

MODEL = "deepseek-v2-lite"


def bench(program, *flags, model=MODEL):
    """One run of `lca bench model`: its JSON, or what went wrong."""
    command = [program, "bench", "model", "--random", model, "--device", "cuda", "--json", *flags]
    began = time.time()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    except subprocess.TimeoutExpired:
        return {"error": "took longer than 150 s", "flags": flags}
    print(f"{' '.join(flags)}: {time.time() - began:.1f} s", flush=True)
    if done.returncode != 0:
        return {"error": done.stderr.strip().splitlines()[-1:], "flags": flags}
    return json.loads(done.stdout) | {"flags": flags}


def deepseek():
    from transformers.models.deepseek_v2 import DeepseekV2Config
    rope = dict(rope_type="yarn", rope_theta=10000.0, factor=40, beta_fast=32, beta_slow=1, mscale=0.707,
                mscale_all_dim=0.707, original_max_position_embeddings=4096)
    return DeepseekV2Config(
        vocab_size=102400, hidden_size=2048, intermediate_size=10944, moe_intermediate_size=1408,
        num_hidden_layers=27, num_attention_heads=16, num_key_value_heads=16, n_shared_experts=2,
        n_routed_experts=64, num_experts_per_tok=6, routed_scaling_factor=1.0, topk_method="greedy",
        n_group=1, topk_group=1, norm_topk_prob=False, first_k_dense_replace=1, kv_lora_rank=512,
        q_lora_rank=None, qk_rope_head_dim=64, v_head_dim=128, qk_nope_head_dim=128,
        max_position_embeddings=163840, rms_norm_eps=1e-6, rope_parameters=rope)


def smollm2():
    from transformers import LlamaConfig
    return LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                       num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192,
                       rms_norm_eps=1e-5, tie_word_embeddings=True,
                       rope_parameters=dict(rope_type="default", rope_theta=100000.0))


class Peer:
    """A model of transformers with random weights."""

    def __init__(self, config):
        import torch
        from transformers import AutoModelForCausalLM
        self.torch = torch
        with torch.device("cuda"):
            self.model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa",
                                                          dtype=torch.bfloat16).eval()
        self.vocabulary = config.vocab_size

    def timed(self, call):
        self.torch.cuda.synchronize()
        began = time.time()
        result = call()
        self.torch.cuda.synchronize()
        return time.time() - began, result

    def read(self, length, batch=1):
        ids = self.torch.randint(0, self.vocabulary, (batch, length), device="cuda")
        return self.timed(lambda: self.model(ids, use_cache=True, logits_to_keep=1))

    def prompt(self, length):
        torch = self.torch
        with torch.inference_mode():
            try:
                seconds = []
                for _ in range(2):
                    taken, out = self.read(length)
                    seconds.append(taken)
                    held = sum(part.numel() * part.element_size() for layer in out.past_key_values.layers
                               for part in (layer.keys, layer.values) if part is not None)
                    del out
                return {"tokens": length, "seconds": min(seconds), "cache_bytes": held}
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                return {"tokens": length, "error": "out of memory"}

    def decode(self, length, batch, steps=12):
        torch = self.torch
        with torch.inference_mode():
            _, out = self.read(length, batch)
            cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
            seconds = []
            for _ in range(steps):
                taken, out = self.timed(lambda: self.model(token, past_key_values=cache, use_cache=True))
                token = out.logits[:, -1:].argmax(-1)
                seconds.append(taken)
            return {"depth": length, "batch": batch, "seconds": sorted(seconds)[steps // 2]}


def main():
    program, out = sys.argv[1], pathlib.Path(sys.argv[2])
    report = {"date": time.strftime("%Y-%m-%d"), "model": MODEL}

    def keep(name, value):
        report[name] = value
        out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    keep("lca", bench(program, "--prompt", "8K,16K,32K,64K,128K", "--depths", "128K", "--repeat", "3",
                      "--generate", "64"))
    keep("batches", bench(program, "--prompt", "none", "--depths", "128K,1M", "--batch", "1", "--fill", "random",
                          "--generate", "64"))
    keep("batches_128k", bench(program, "--prompt", "none", "--depths", "128K", "--batch", "32,200",
                               "--fill", "random"))
    keep("batches_fp8", bench(program, "--prompt", "none", "--depths", "128K", "--batch", "1,32,200",
                              "--fill", "random", "--groups", "fp8"))
    keep("sessions", bench(program, "--prompt", "16K", "--depths", "128K", "--batch", "370,385", "--fill",
                           "random", "--generate", "4", "--repeat", "1"))
    keep("sessions_fp8", bench(program, "--prompt", "16K", "--depths", "128K", "--batch", "600", "--fill",
                               "random", "--generate", "4", "--repeat", "1", "--groups", "fp8"))
    keep("skew", bench(program, "--prompt", "16K", "--depths", "none", "--skew", "3"))
    keep("dense", bench(program, "--prompt", "8K,16K,32K,64K,128K", "--depths", "none", "--method", "dense",
                        "--repeat", "2"))
    keep("million", bench(program, "--prompt", "1M", "--depths", "none", "--repeat", "1"))
    keep("entry", bench(program, "--prompt", "32K,128K", "--depths", "128K", "--positions", "entry"))
    keep("smollm2", bench(program, "--prompt", "8K", "--depths", "8K", "--batch", "1,64", "--repeat", "3",
                          model="smollm2"))
    if "--no-peer" in sys.argv:
        return
    peer = Peer(smollm2())
    keep("smollm2_peer", {"prefill": [peer.prompt(8192)],
                          "decode": [peer.decode(8192, 1), peer.decode(8192, 64)]})
    del peer
    peer = Peer(deepseek())
    rows = []
    for length in (8192, 16384, 32768, 65536, 131072):
        rows.append(peer.prompt(length))
        keep("peer", {"prefill": rows})
    keep("peer", {"prefill": rows, "decode": [peer.decode(8192, 1), peer.decode(131072, 1)]})


if __name__ == "__main__":
    main()
