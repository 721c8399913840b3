"""lca.patch with entry positions on models whose RoPE frequencies depend on the length, tied to the engine."""

import copy

import numpy
import pytest
import torch
from tiny_models import ARCHITECTURES, SMALL, tiny, tokens

import lca

pytestmark = pytest.mark.filterwarnings("ignore")
TRAINED = 26
LONG, SHORT = 70, 40  # tokens that leave 31 and 25 entries
KINDS = ["dynamic", "longrope"]
ENTRY = {**SMALL, "positions": "entry", "mass": "score"}


def tiny_rope(name, kind):
    config = copy.deepcopy(tiny(name).config)
    config.max_position_embeddings = TRAINED if kind == "dynamic" else 4 * TRAINED
    config.rope_parameters = {"rope_type": kind, "rope_theta": 10000.0}
    if kind == "dynamic":
        config.rope_parameters["factor"] = 3.0
    else:
        pairs = (getattr(config, "qk_rope_head_dim", None) or config.hidden_size // config.num_attention_heads) // 2
        config.rope_parameters |= {"original_max_position_embeddings": TRAINED, "factor": 4.0,
                                   "short_factor": [1 + 0.3 * i for i in range(pairs)],
                                   "long_factor": [1.1 + 1.7 * i for i in range(pairs)]}
    torch.manual_seed(5)
    model = type(tiny(name))(config).eval()
    if name == "deepseek_v2":
        model.set_experts_implementation("eager")
    return model


def logits(model, ids, **kwargs):
    with torch.no_grad():
        return model(ids, use_cache=False, **kwargs).logits


def far(ours, theirs):
    ours, theirs = numpy.asarray(ours), numpy.asarray(theirs)
    return float(numpy.abs(ours - theirs).max() / max(numpy.abs(theirs).max(), 1e-2))


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_the_engine_says_the_same(name, kind, tmp_path):
    """Long prompts, short ones, and texts that grow: the first prompt decides for the sequence's life."""
    model = lca.patch(tiny_rope(name, kind), **ENTRY)
    model.save_pretrained(tmp_path)
    engine = lca.Engine(tmp_path, "cpu", precision="f32")
    ids = tokens(1, LONG + 8, seed=4)
    text = ids[0].tolist()
    for length in (LONG, SHORT):
        with torch.no_grad():
            first = model(ids[:, :length], use_cache=True)
            more = model(ids[:, length:length + 8], past_key_values=first.past_key_values, use_cache=True)
        assert far(first.logits[0], engine.logits(text[:length])) < 2e-3, length
        session = engine.session().read(text[:length]).read(text[length:length + 8])
        assert far(more.logits[0, -1], session.logits()) < 2e-3, length
    answer = model.generate(ids[:, :SHORT], max_new_tokens=10, do_sample=False, eos_token_id=None)
    session, greedy = engine.session().read(text[:SHORT]), []
    for _ in range(10):  # beyond the entries the model was trained for
        greedy.append(int(session.logits().argmax()))
        session.append(greedy[-1])
    assert greedy == answer[0, SHORT:].tolist()


def test_frequencies_follow_entries_not_tokens():
    """With fewer entries than the model was trained for, longer texts keep the plain frequencies."""
    model = tiny_rope("llama", "dynamic")
    config = copy.deepcopy(model.config)
    config.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}
    plain = type(model)(config).eval()
    plain.load_state_dict(model.state_dict())
    ids = tokens(1, LONG)
    for one in (model, plain):
        lca.patch(one, **ENTRY)
    assert far(logits(model, ids[:, :SHORT]), logits(plain, ids[:, :SHORT])) < 1e-5
    assert far(logits(model, ids), logits(plain, ids)) > 1e-3


@pytest.mark.parametrize("name", ["llama", "deepseek_v2"])
def test_rows_and_documents_of_one_batch_have_frequencies_of_their_own(name, kind):
    model = lca.patch(tiny_rope(name, kind), **ENTRY)
    ids = tokens(3, LONG)
    alone = [logits(model, ids[:1, LONG - SHORT:])[0], logits(model, ids[1:2])[0], logits(model, ids[2:, 7:])[0]]
    mask = torch.ones_like(ids)
    mask[0, : LONG - SHORT] = 0
    mask[2, :7] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    left = logits(model, ids, attention_mask=mask, position_ids=positions)
    for row, expected in enumerate(alone):
        assert far(left[row, -len(expected):], expected) < 1e-4, row
    packed = torch.cat([ids[0, LONG - SHORT:], ids[1], ids[2, 7:]])[None]
    places = torch.cat([torch.arange(len(one)) for one in alone])[None]
    assert far(logits(model, packed, position_ids=places)[0], torch.cat(alone)) < 1e-4


def test_a_left_padded_batch_generates_what_each_row_does_alone(kind):
    model = lca.patch(tiny_rope("llama", kind), **ENTRY)
    ids = tokens(2, LONG)
    mask = torch.ones_like(ids)
    mask[0, : LONG - SHORT] = 0
    options = dict(max_new_tokens=8, do_sample=False, eos_token_id=None)
    together = model.generate(ids, attention_mask=mask, **options)[:, LONG:]
    assert torch.equal(together[0], model.generate(ids[:1, LONG - SHORT:], **options)[0, SHORT:])
    assert torch.equal(together[1], model.generate(ids[1:], **options)[0, LONG:])


def test_gradients_of_a_mixed_batch_are_the_sum_of_those_of_its_rows(kind):
    model = lca.patch(tiny_rope("llama", kind), **ENTRY).double()
    ids = tokens(2, LONG)
    mask = torch.ones_like(ids)
    mask[0, SHORT:] = 0
    weights = list(model.parameters())

    def gradients(loss):
        return torch.autograd.grad(loss, weights)

    both = model(ids, attention_mask=mask, use_cache=False).logits
    together = gradients(both[0, :SHORT].square().sum() + both[1].square().sum())
    one = gradients(model(ids[:1, :SHORT], use_cache=False).logits.square().sum())
    other = gradients(model(ids[1:], use_cache=False).logits.square().sum())
    for whole, a, b in zip(together, one, other):
        assert torch.allclose(whole, a + b, rtol=1e-5, atol=1e-7 * float(whole.abs().max() + 1))


def test_the_models_own_rotation_comes_back(kind):
    model = tiny_rope("llama", kind)
    ids = tokens(1, LONG)
    dense = logits(model, ids)
    lca.patch(model, **ENTRY)
    condensed = logits(model, ids)
    assert far(condensed, dense) > 1e-3
    with lca.override(model, method="dense"):
        assert far(logits(model, ids), dense) < 1e-4
    assert torch.equal(logits(model, ids), condensed)
    assert torch.equal(logits(copy.deepcopy(model), ids), condensed)
    lca.patch(model, positions="token")
    lca.unpatch(model)
    assert torch.equal(logits(model, ids), dense)
