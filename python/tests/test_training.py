"""Patched models as training and the engine use them: gradients, checkpointing, adapters, equal logits."""

import contextlib

import numpy
import pytest
import torch
from test_torch_whole import EveryOperator
from tiny_models import ARCHITECTURES, SMALL, VOCABULARY, tiny, tokens

import lca
from lca import reference

pytestmark = pytest.mark.filterwarnings("ignore")
VARIANTS = [{}, {"positions": "entry", "mass": "score"}, {"semantic_pool": "select", "mass": "score"}]


@pytest.fixture(params=list(ARCHITECTURES))
def name(request):
    return request.param


def gradients(model, ids, **kwargs):
    model.zero_grad()
    model(ids, labels=ids, use_cache=False, **kwargs).loss.backward()
    return {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}


def apart(one, other):
    """The largest difference of two sets of gradients, each relative to the largest value of its tensor."""
    assert one.keys() == other.keys()
    return max(float((one[key] - other[key]).abs().max() / max(float(other[key].abs().max()), 1e-4)) for key in one)


class Plain:
    """The operators by lca.reference."""

    attention = staticmethod(reference.attention)

    @staticmethod
    def mla_attention(*tensors, k_nope, v, **options):
        return reference.mla_attention(*tensors, **options)  # which makes keys and values of tokens by itself


@contextlib.contextmanager
def plain_operators():
    from lca import _forms
    kernels, _forms.operators = _forms.operators, Plain
    try:
        yield
    finally:
        _forms.operators = kernels


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_gradients_are_those_of_the_reference(name, settings):
    model = lca.patch(tiny(name), **{**SMALL, **settings})
    ids = tokens(2, 60)
    ours = gradients(model, ids)
    with plain_operators():
        plain = gradients(model, ids)
    assert apart(ours, plain) < 2e-3
    with lca.override(model, method="dense"):
        assert apart(gradients(model, ids), plain) > 1e-2  # the comparison can fail


def test_a_layer_that_trains_is_one_operator(name):
    model = lca.patch(tiny(name), **SMALL)
    with EveryOperator() as seen:
        gradients(model, tokens(2, 60))
    layers = model.config.num_hidden_layers
    for operator, count in {"attention": layers, "attention_backward": layers, "condense": 0, "attend": 0}.items():
        assert seen.names.count(f"lca::{operator}") == count


class Adapted(torch.nn.Linear):
    """Stands for an adapter's module: no plain Linear, so that nothing is taken from its weight."""


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
@pytest.mark.parametrize("mla", ["minicpm3", "deepseek_v2"])
def test_gradients_through_an_adapted_projection_are_the_same(mla, settings):
    model = lca.patch(tiny(mla), **{**SMALL, **settings})
    ids = tokens(2, 60)
    whole = gradients(model, ids)
    for layer in model.model.layers:
        layer.self_attn.kv_b_proj.__class__ = Adapted
    with EveryOperator() as seen:
        halves = gradients(model, ids)
    assert "lca::condense" in seen.names and "lca::attention" not in seen.names
    assert apart(halves, whole) < 1e-4


def test_checkpointing_repeats_a_layer_with_the_settings_of_its_pass(name):
    model = lca.patch(tiny(name), **SMALL).train()
    ids = tokens(2, 60)
    plain = gradients(model, ids)
    model.gradient_checkpointing_enable()
    model.zero_grad()
    loss = model(ids, labels=ids).loss
    with torch.no_grad(), lca.override(model, method="dense"):
        model(tokens(1, 30))  # a teacher of another length, between forward and backward
    loss.backward()
    repeated = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    assert apart(repeated, plain) < 1e-5


def test_a_compiled_block_has_the_same_gradients(name):
    model = lca.patch(tiny(name), **SMALL)
    ids = tokens(2, 48)
    plain = gradients(model, ids)
    for layer in model.model.layers:
        layer.compile(backend="aot_eager")
    assert apart(gradients(model, ids), plain) < 1e-4


@pytest.mark.parametrize("when", ["before", "after"])
def test_lora_trains_and_merges(name, when):
    peft = pytest.importorskip("peft")
    target = ["kv_b_proj", "o_proj"] if name in ("minicpm3", "deepseek_v2") else ["q_proj", "v_proj"]
    model = tiny(name)
    if when == "before":
        lca.patch(model, **SMALL)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=target, init_lora_weights=False))
    if when == "after":
        lca.patch(adapted, **SMALL)
    adapted.eval()
    ids = tokens(1, 60)
    adapted(ids, labels=ids, use_cache=False).loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0
               for key, p in adapted.named_parameters() if "lora_B" in key)
    with torch.no_grad():
        logits = adapted(ids, use_cache=False).logits
        merged = adapted.merge_and_unload()
        assert float((merged(ids, use_cache=False).logits - logits).abs().max()) < 1e-3


def test_a_toy_task_is_learnt():
    """Each sequence repeats its first half: what comes next stands outside the window, in the groups."""
    torch.manual_seed(0)
    model = lca.patch(tiny("llama"), group=2, window=8, summary_queries=2).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    half = torch.randint(3, VOCABULARY, (4, 24))
    losses = []
    for _ in range(40):
        ids = torch.cat([half, half], 1)
        loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize("settings", [{}, {"positions": "entry", "group": [2, 4, 8]}], ids=str)
def test_the_engine_says_the_same(name, settings, tmp_path):
    """transformers with our patch, and the C++ engine on the checkpoint it wrote, settings included."""
    model = lca.patch(tiny(name, seed=3), **{**SMALL, **settings})
    ids = tokens(1, 80, seed=4)
    model.save_pretrained(tmp_path)
    engine = lca.Engine(tmp_path, "cpu", precision="f32")
    assert [layer["group"] for layer in engine.settings] == (settings.get("group") or [4] * 3)
    with torch.no_grad():
        ours = model(ids, use_cache=False).logits[0].numpy()
        answer = model.generate(ids, max_new_tokens=16, do_sample=False, eos_token_id=None)[0, 80:].tolist()
    theirs = engine.logits(ids[0].tolist())
    assert numpy.abs(ours - theirs).max() < 2e-3 * max(numpy.abs(ours).max(), 1e-2)
    session, greedy = engine.session().read(ids[0].tolist()), []  # token by token: tiny models have no tokenizer
    for _ in answer:
        greedy.append(int(session.logits().argmax()))
        session.append(greedy[-1])
    assert greedy == answer
