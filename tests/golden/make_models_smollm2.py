"""Golden numbers of a real model: SmolLM2-135M-Instruct, the Q4_1 GGUF file.

    python make_models_smollm2.py FILE.gguf

The file's weights are dequantised by the gguf package and run by transformers in float32. The
tokenizer is transformers' own reading of the file.
"""

import json
import sys
import time

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, LlamaConfig

import op_attention
from op_attention import GqaStore, condensed_groups, pool, scores, summary_range
from make_models_common import MODELS, seeded
from make_models_gguf import llama_from_gguf
from make_models_lca import condensed

FOLDER = MODELS / "smollm2"
TRAINING_FREE = {"method": "lca", "group": 16, "window": 1024, "sink": 16, "summary_queries": 16,
                 "summary": "streaming", "head_reduce": "mean", "semantic_pool": "select",
                 "positional_pool": "select", "mass": "score"}
SETTINGS = {
    "training-free": TRAINING_FREE,
    "training-free window 256": {**TRAINING_FREE, "window": 256},
    "training window 256": {**TRAINING_FREE, "window": 256, "sink": 0, "semantic_pool": "weighted", "mass": "none"},
    "paper window 256": {**TRAINING_FREE, "window": 256, "sink": 0, "semantic_pool": "weighted", "mass": "none",
                         "summary": "prompt"},
    "window 256 sink 16": {**TRAINING_FREE, "method": "window", "window": 256},
}


def model_from(path):
    fields = {k: f.contents() for k, f in gguf.GGUFReader(path).fields.items() if "tokenizer" not in k}
    config = LlamaConfig(
        vocab_size=fields["llama.vocab_size"], hidden_size=fields["llama.embedding_length"],
        intermediate_size=fields["llama.feed_forward_length"], num_hidden_layers=fields["llama.block_count"],
        num_attention_heads=fields["llama.attention.head_count"],
        num_key_value_heads=fields["llama.attention.head_count_kv"],
        max_position_embeddings=fields["llama.context_length"],
        rms_norm_eps=fields["llama.attention.layer_norm_rms_epsilon"], tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": fields["llama.rope.freq_base"]})
    return llama_from_gguf([path], config)


def seen(n, m, o):
    """[n, m + n]: which representatives and tokens each query attends to."""
    mask = torch.zeros(n, m + n, dtype=torch.bool)
    for t in range(n):
        tokens, reps = op_attention.visible(t, o)
        mask[t, :reps] = True
        mask[t, m + torch.tensor(tokens)] = True
    return mask


MASKS = {}


def attend_masked(tensors, options):
    """op_attention.attention for one GQA sequence, all queries of a KV head at once: fast enough for
    thousands of tokens."""
    x = {k: v.float() for k, v in tensors.items()}
    o = {**op_attention.DEFAULTS, **options}
    n, g, sink = x["q"].shape[1], o["group"], o["sink"]
    prompt = sum(o.get("prefill", [n]))
    m = condensed_groups(n, g, o["window"], sink) if o["method"] == "lca" else 0
    key = (n, m, json.dumps(options, sort_keys=True))
    if key not in MASKS:
        MASKS.clear()
        MASKS[key] = seen(n, m, o)
    mask = MASKS[key]
    out, margin = [], float("inf")
    for kv in range(x["k"].shape[2]):
        store = GqaStore(x, 0, kv)
        sem, pos, bias = [store.semantic[:0]], [store.positional[:0]], []
        for j in range(m):
            lo, hi = summary_range(j, prompt, o)
            q_bar = store.q[lo:hi + 1].mean(dim=0)
            members = slice(sink + j * g, sink + (j + 1) * g)
            keys, _ = store.expand(store.semantic[members], store.positional[members])
            s = scores(q_bar, keys, o["scale"], o["head_reduce"])
            best, second = s.topk(2).values.tolist()
            margin = min(margin, (best - second) / max(1.0, abs(best)))
            sem.append(pool(store.semantic[members], s, o["semantic_pool"])[None])
            pos.append(pool(store.positional[members], s, o["positional_pool"])[None])
            if o["mass"] == "score":
                rep, _ = store.expand(sem[-1], pos[-1])
                bias.append(torch.logsumexp(s, 0) - scores(q_bar, rep, o["scale"], o["head_reduce"])[0])
            else:
                bias.append(torch.tensor(np.log(g) if o["mass"] == "count" else 0.0, dtype=torch.float32))
        keys, values = torch.cat(pos + [store.positional]), torch.cat(sem + [store.semantic])
        extra = torch.zeros(m + n)
        if m:
            extra[:m] = torch.stack(bias)
        logits = o["scale"] * torch.einsum("thd,id->hti", store.q, keys) + extra
        weights = logits.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        out.append(torch.einsum("hti,iv->thv", weights, values))
    return {"out": torch.cat(out, dim=1)[None]}, margin


def check_masked():
    rng = seeded("masked")
    x = {k: torch.from_numpy(rng.standard_normal((1, 60, heads, 8))).float() for k, heads in
         (("q", 4), ("k", 2), ("v", 2))}
    for options in ({"group": 4, "window": 8, "sink": 2, "mass": "score", "semantic_pool": "select"},
                    {"group": 4, "window": 8, "summary": "prompt"}, {"method": "window", "window": 8, "sink": 2}):
        options = {**options, "scale": 8 ** -0.5}
        plain, fast = op_attention.attention(x, options)[0]["out"], attend_masked(x, options)[0]["out"]
        assert (plain - fast).abs().max() < 1e-5, options


@torch.no_grad()
def logits_in_parts(model, tokens):
    """Float32 logits a few hundred positions at a time: the whole would be 400 MB."""
    hidden = model.model(input_ids=tokens[None], use_cache=False).last_hidden_state[0]
    for start in range(0, len(tokens), 256):
        yield start, model.lm_head(hidden[start:start + 256])


def mean_nll(model, tokens):
    """Mean of −ln p(token t | tokens before t), t = 1 … n−1, in nats."""
    total = 0.0
    for start, logits in logits_in_parts(model, tokens):
        targets = tokens[start + 1:start + 1 + len(logits)]
        logp = torch.log_softmax(logits[:len(targets)].double(), dim=-1)
        total -= logp.gather(1, targets[:, None]).sum().item()
    return total / (len(tokens) - 1)


def reduced_golden(model, tokens):
    columns = torch.from_numpy(np.sort(seeded("smollm2/columns").choice(model.config.vocab_size, 64, replace=False)))
    rows = torch.cat([part for _, part in logits_in_parts(model, tokens)])
    save_file({"tokens": tokens.to(torch.int32), "columns": columns.to(torch.int32),
               "logits": rows[:, columns].contiguous(), "argmax": rows.argmax(dim=-1).to(torch.int32),
               "logsumexp": torch.logsumexp(rows.double(), dim=-1).float(), "max": rows.amax(dim=-1)},
              FOLDER / "golden.safetensors")
    top = rows.topk(2, dim=-1).values
    print(f"golden: max|logit| {rows.abs().max():.2f}, smallest gap of the two best {(top[:, 0] - top[:, 1]).min():.2e}")


def main(path):
    check_masked()
    model = model_from(path)
    tokenizer = AutoTokenizer.from_pretrained(path.rsplit("/", 1)[0], gguf_file=path.rsplit("/", 1)[1])
    text = (FOLDER / "text.txt").read_text()
    ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
    assert tokenizer.decode(ids) == text
    print(f"{len(text)} characters, {len(ids)} tokens")
    reduced_golden(model, ids[:96])
    save_file({"tokens": ids.to(torch.int32)}, FOLDER / "tokens.safetensors")
    result = {"file": "SmolLM2-135M-Instruct.Q4_1.gguf", "text": "text.txt", "unit": "nats, mean over n - 1 targets",
              "dense": {str(n): mean_nll(model, ids[:n]) for n in (512, 2048)}, "lca": {}}
    print(result["dense"], flush=True)
    for name, settings in SETTINGS.items():
        begin = time.time()
        entry = {"settings": settings}
        with condensed(model, settings, attend=attend_masked) as margins:
            for n in (512, 2048):
                entry[str(n)] = mean_nll(model, ids[:n])
        result["lca"][name] = entry
        print(name, entry["512"], entry["2048"], f"margin {min(margins):.1e}, {time.time() - begin:.0f} s", flush=True)
    (FOLDER / "perplexity.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
