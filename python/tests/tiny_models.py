"""Tiny models of all architectures that lca.patch knows, with random weights."""

import torch
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MiniCPM3Config,
    MiniCPM3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCABULARY = 128
_COMMON = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=64, num_hidden_layers=3,
               num_attention_heads=4, max_position_embeddings=512, pad_token_id=0, bos_token_id=1,
               eos_token_id=2)
_MLA = dict(kv_lora_rank=24, qk_rope_head_dim=8, qk_nope_head_dim=12, v_head_dim=12, num_key_value_heads=4)
_EXPERTS = dict(n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, n_shared_experts=1,
                first_k_dense_replace=1, topk_method="greedy", n_group=1, topk_group=1, norm_topk_prob=False)

ARCHITECTURES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**_COMMON, num_key_value_heads=2)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**_COMMON, num_key_value_heads=2)),
    "minicpm3": lambda: MiniCPM3ForCausalLM(MiniCPM3Config(**_COMMON, **_MLA, q_lora_rank=20)),
    "deepseek_v2": lambda: DeepseekV2ForCausalLM(
        DeepseekV2Config(**_COMMON, **_MLA, **_EXPERTS, q_lora_rank=None)),
}
# So small that every text condenses.
SMALL = dict(group=4, window=16, sink=2, summary_queries=4)


def tiny(name: str, dtype=torch.float32, seed: int = 0):
    """A model in evaluation mode; the same seed gives the same weights."""
    torch.manual_seed(seed)
    model = ARCHITECTURES[name]().to(dtype).eval()
    if name == "deepseek_v2":
        model.set_experts_implementation("eager")  # the grouped products take no float64
    return model


def tokens(rows: int, count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (rows, count), generator=generator)
