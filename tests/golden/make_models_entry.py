"""Golden logits of whole models with entry positions, beyond the length they were trained for.

Weights are those of other cases; configs are theirs but for a trained length of 256 tokens. Where
frequencies depend on the length, they are those of the number of entries the prompt leaves.
"""

import inspect
import json

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from make_models_common import MODELS, quiet
from make_models_lca import SMALL, save_condensed
from op_attention import condensed_groups

TRAINED = 256
ENTRY = {**SMALL, "positions": "entry"}
SELECT = {**ENTRY, "semantic_pool": "select", "mass": "score"}
WEIGHTED = {**ENTRY, "positional_pool": "weighted", "mass": "score"}
LONG_ROUTER_MARGIN = 1e-4  # of many tokens some router is always near a tie
WINDOW = {**ENTRY, "method": "window", "window": 40}
PROMPT = {**ENTRY, "summary": "prompt"}


def rope(original, **fields):
    """Fields of rope_parameters that change; None: the field goes."""
    return {"original_max_position_embeddings": original, **fields}


# case: (whose weights, changes of rope_parameters, {golden: (settings, tokens, tokens of the prompt)})
CASES = {
    "entry_llama": ("llama", {}, {"select": (SELECT, 320, 320), "window": (WINDOW, 300, 150),
                                  "prompt": (PROMPT, 300, 280)}),
    "entry_llama_yarn": ("llama_yarn", rope(64), {"select": (SELECT, 320, 300), "weighted": (WEIGHTED, 400, 400)}),
    # 96 positions: 300 tokens are 82 entries, and the short frequencies; 400 tokens are 107.
    "entry_llama_longrope": ("llama_longrope", rope(96), {"short": (SELECT, 320, 300), "long": (WEIGHTED, 400, 400),
                                                          "stays_short": (WEIGHTED, 400, 300)}),
    "entry_llama_dynamic": ("llama_dynamic", {"max_position_embeddings": 96},
                            {"short": (WEIGHTED, 320, 300), "long": (WEIGHTED, 400, 400)}),
    "entry_minicpm3_longrope": ("minicpm3_longrope", rope(96), {"short": (SELECT, 320, 300),
                                                                "long": (WEIGHTED, 400, 390)}),
    "entry_deepseek_v2": ("deepseek_v2_yarn_plain", rope(64), {"weighted": (WEIGHTED, 280, 270)}),
}


def entries(tokens, settings):
    """Entries that a prompt leaves."""
    g, w, s = settings["group"], settings["window"], settings["sink"]
    if settings["method"] == "window":
        return min(tokens, s + w)
    return tokens - condensed_groups(tokens, g, w, s) * (g - 1)


def fix_frequencies(model, length):
    """Makes the model rotate as at this length, however long its input is; returns the
    frequencies."""
    rotary = model.model.rotary_emb
    kind = model.config.rope_parameters["rope_type"]
    if kind != "default":
        rotary.inv_freq = ROPE_INIT_FUNCTIONS[kind](model.config, "cpu", seq_len=length)[0]
    plain = inspect.unwrap(type(rotary).forward)  # without what changes frequencies with the input
    rotary.forward = lambda x, position_ids, *rest: plain(rotary, x, position_ids, *rest)
    return rotary.inv_freq


def make(case):
    weights, changes, goldens = CASES[case]
    changes = dict(changes)
    folder = MODELS / case
    folder.mkdir(exist_ok=True)
    config = json.loads((MODELS / weights / "config.json").read_text())
    config["max_position_embeddings"] = changes.pop("max_position_embeddings", TRAINED)
    config["rope_parameters"].update(changes)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "same_weights_as").write_text(weights + "\n")
    for name, (settings, n, prompt) in goldens.items():
        with quiet():
            model = AutoModelForCausalLM.from_pretrained(
                MODELS / weights, attn_implementation="eager", dtype=torch.float32,
                config=AutoConfig.from_pretrained(folder)).eval()
        frequencies = fix_frequencies(model, entries(prompt, settings))
        save_condensed(case, model, name, settings, prompt, n, folder / f"golden_lca_{name}.safetensors",
                       frequencies, LONG_ROUTER_MARGIN)


def make_all(only=""):
    for case in CASES:
        if only in case:
            make(case)


if __name__ == "__main__":
    make_all()
