"""lca.patch on transformers models: caches, padding, packing, generation, files."""

import copy

import pytest
import torch
from tiny_models import ARCHITECTURES, SMALL, tiny, tokens
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import lca

pytestmark = pytest.mark.filterwarnings("ignore")
SETTINGS = [
    {},
    {"mass": "score"},
    {"positions": "entry"},
    {"positions": "entry", "mass": "count", "semantic_pool": "select", "positional_pool": "weighted"},
    {"method": "window", "positions": "entry"},
    {"method": "dense"},
    {"group": [2, 4, 8]},
]


@pytest.fixture(params=list(ARCHITECTURES))
def name(request):
    return request.param


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def logits(model, ids, **kwargs):
    return model(ids, use_cache=False, **kwargs).logits


def far(a, b):
    return float((a - b).abs().max() / max(float(b.abs().max()), 1e-2))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_chunks_and_single_tokens_equal_one_pass(name, settings):
    model = lca.patch(tiny(name), **SMALL)
    lca.patch(model, **settings)
    ids = tokens(2, 70)
    whole = logits(model, ids)
    parts, cache = [], None
    for first, last in [(0, 30), (30, 51), *((t, t + 1) for t in range(51, 70))]:
        step = model(ids[:, first:last], past_key_values=cache, use_cache=True)
        parts, cache = [*parts, step.logits], step.past_key_values
    assert far(torch.cat(parts, 1), whole) < 1e-4
    assert isinstance(cache, lca.Cache)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_padded_and_packed_rows_equal_each_row_alone(name, settings):
    model = lca.patch(tiny(name), **SMALL)
    lca.patch(model, **settings)
    ids = tokens(2, 70)
    mask = torch.ones_like(ids)
    mask[0, :20] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    left = logits(model, ids, attention_mask=mask, position_ids=positions)
    assert far(left[0, 20:], logits(model, ids[:1, 20:])[0]) < 1e-4
    assert far(left[1], logits(model, ids[1:])[0]) < 1e-4
    right = logits(model, ids, attention_mask=mask.flip(1))
    assert far(right[0, :50], logits(model, ids[:1, :50])[0]) < 1e-4
    packed = logits(model, ids.reshape(1, -1), position_ids=torch.arange(70).repeat(2)[None])
    assert far(packed.view(2, 70, -1), logits(model, ids)) < 1e-4


def test_condensation_changes_what_dense_attention_says(name):
    model = tiny(name)
    ids = tokens(1, 70)
    dense = logits(model, ids)
    lca.patch(model, **SMALL)
    condensed = logits(model, ids)
    assert far(condensed[:, :21], dense[:, :21]) < 1e-4  # nothing has left the window yet
    assert far(condensed, dense) > 1e-3
    with lca.override(model, method="dense"):
        assert far(logits(model, ids), dense) < 1e-4
    assert far(logits(model, ids), condensed) == 0
    lca.unpatch(model)
    assert torch.equal(logits(model, ids), dense)
    assert not hasattr(model.config, "lca")


def test_generate_follows_the_whole_text(name):
    model = lca.patch(tiny(name), **SMALL)
    ids = tokens(2, 60)
    answer = model.generate(ids, max_new_tokens=12, do_sample=False, return_dict_in_generate=True,
                            eos_token_id=None)
    text = ids
    for _ in range(12):
        text = torch.cat([text, logits(model, text)[:, -1:].argmax(-1)], 1)
    assert torch.equal(answer.sequences, text)
    assert isinstance(answer.past_key_values, lca.Cache)


def test_generate_in_a_left_padded_batch_equals_each_row_alone(name):
    model = lca.patch(tiny(name), positions="entry", **SMALL)
    ids = tokens(2, 60)
    mask = torch.ones_like(ids)
    mask[0, :17] = 0
    options = dict(max_new_tokens=10, do_sample=False, eos_token_id=None)
    together = model.generate(ids, attention_mask=mask, **options)[:, 60:]
    assert torch.equal(together[0], model.generate(ids[:1, 17:], **options)[0, 43:])
    assert torch.equal(together[1], model.generate(ids[1:], **options)[0, 60:])


def test_beams_share_a_prompt(name):
    model = lca.patch(tiny(name), **SMALL)
    ids = tokens(1, 50)
    options = dict(num_beams=3, max_new_tokens=8, do_sample=False, eos_token_id=None)
    beams = model.generate(ids, **options)
    lca.unpatch(model)
    lca.patch(model, **SMALL)
    assert torch.equal(beams, model.generate(ids, use_cache=False, **options))


def test_the_cache_has_the_size_of_the_law(name):
    """Mechanism §7 at 8K tokens: m·(E·b + 4·[mass = score]) + (n − m·g)·E·b in every layer."""
    for mass in ("none", "score"):
        model = lca.patch(tiny(name, torch.bfloat16), preset="training", mass=mass)
        n = 8192 + 5
        cache = model.model(tokens(1, n), use_cache=True).past_key_values
        config = model.config
        heads, width = (1, 24 + 8) if hasattr(config, "kv_lora_rank") else (2, 2 * config.hidden_size // 4)
        m = (n - 1024) // 16
        assert cache.groups() == [m]
        each = heads * width * 2
        expected = m * (each + (4 * heads if mass == "score" else 0)) + (n - 16 * m) * each
        assert cache.bytes() == config.num_hidden_layers * expected


def test_settings_travel_with_the_checkpoint(name, tmp_path):
    model = lca.patch(tiny(name), group=[2, 4, 8], window=16, mass="score")
    ids = tokens(1, 60)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    lca.patch(again)
    assert again.config.lca["group"] == [2, 4, 8]
    assert far(logits(again, ids), logits(model, ids)) < 1e-5
    lca.patch(again, group=4)  # only what is named changes
    assert again.config.lca["mass"] == "score" and again.config.lca["group"] == 4


def test_a_copy_is_patched_on_its_own(name):
    model = lca.patch(tiny(name), **SMALL)
    ids = tokens(1, 60)
    other = copy.deepcopy(model)
    lca.patch(other, method="dense")
    assert far(logits(model, ids), logits(other, ids)) > 1e-3


def test_wrong_use_is_refused_with_one_line():
    model = lca.patch(tiny("llama"), **SMALL)
    ids = tokens(2, 30)
    cases = [
        (lambda: lca.patch(GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=8))), "Llama"),
        (lambda: lca.patch(model, grup=4), "grup"),
        (lambda: lca.patch(model, group=[1, 2]), "3 layers"),
        (lambda: lca.patch(model, group=0), "group"),
        (lambda: lca.patch(model, preset="fast"), "training-free"),
        (lambda: model(ids, attention_mask=torch.ones(2, 1, 30, 30)), "attention_mask"),
        (lambda: model(ids, attention_mask=torch.tensor([[1, 0] * 15] * 2)), "attention_mask"),
        (lambda: model(ids[:1], position_ids=torch.arange(15).repeat(2)[None], use_cache=True), "packed"),
        (lambda: lca.override(tiny("llama"), method="dense").__enter__(), "lca.patch"),
    ]
    for call, word in cases:
        with pytest.raises((ValueError, TypeError), match=word) as error:
            call()
        assert "\n" not in str(error.value)


def test_no_square_mask_is_built(name, monkeypatch):
    """Whatever the length, the largest boolean tensor a pass makes is far below n × n."""
    model = lca.patch(tiny(name), preset="training", window=64)
    seen = []
    masks = __import__("transformers.masking_utils", fromlist=["sdpa_mask"])
    for function in ("sdpa_mask", "eager_mask"):
        monkeypatch.setattr(masks, function, lambda *a, **k: seen.append(1))
    model(tokens(1, 600), use_cache=True)
    assert not seen
