"""The fused form of a Llama with LoRA says what the modules of transformers and PEFT say."""

import copy
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
pytest.importorskip("accelerate")
import finetune_parts as parts  # noqa: E402
from test_finetune import PACKAGE, batch_of, losses_of  # noqa: E402
from tiny_models import tiny  # noqa: E402

import lca  # noqa: E402
from lca.finetune import ConfigError, config_parse, finetune, fused, losses  # noqa: E402
from lca.finetune.config import TARGETS  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return parts.make(tmp_path_factory.mktemp("fused"))


def student_of(targets=TARGETS, dtype=torch.float32, rank=8):
    model = lca.patch(parts.tiny_llama(layers=3).to(dtype), "training", group=4, window=16, summary_queries=4)
    options = peft.LoraConfig(r=rank, lora_alpha=3 * rank, target_modules=list(targets), task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, options)
    torch.manual_seed(3)
    for name, each in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(each, std=0.1)
    return losses.Student(model, 7)


def gradients(student, knobs, teach, documents, reach=None):
    ids, kinds, positions = batch_of(length=90)
    if documents is None:
        positions = torch.arange(90).repeat(2, 1)
    places = losses.places_of(kinds, positions, teach, reach)
    sums = student(ids, positions, places, knobs, teach, documents)
    with torch.no_grad():
        assert torch.allclose(student(ids, positions, places, knobs, teach, documents), sums, rtol=1e-6)
    (2 * sums[0 if teach else 1] + 3 * sums[2]).backward()
    return sums.detach(), {name: each.grad for name, each in student.named_parameters() if each.requires_grad}


KNOBS = {"lca": {"group": 4, "window": 16}, "window": {"method": "window", "window": 16, "sink": 3},
         "entry": {"group": 8, "window": 8, "sink": 2, "positions": "entry"}, "dense": {"method": "dense"},
         "layers": {"group": [2, 4, 8], "window": 16}}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("teach", [False, True])
@pytest.mark.parametrize("knobs", KNOBS)
def test_losses_and_gradients_equal_those_of_the_modules(knobs, teach, packed):
    documents = torch.tensor([0, 17, 90, 107, 180], dtype=torch.int32) if packed else None
    plain = student_of()
    quick = copy.deepcopy(plain)
    quick.fuse(checkpointing=teach)
    sums, expected = gradients(plain, KNOBS[knobs], teach, documents)
    found, ours = gradients(quick, KNOBS[knobs], teach, documents)
    assert torch.allclose(found, sums, rtol=1e-5, atol=1e-4)
    assert ours.keys() == expected.keys()
    for name, each in expected.items():
        assert (ours[name] - each).abs().max() <= 2e-5 * each.abs().max() + 1e-6, name
    assert all(each.abs().max() > 0 for each in expected.values())


@pytest.mark.parametrize("targets", [["q_proj", "down_proj"], ["v_proj", "gate_proj", "o_proj"]])
def test_adapters_may_be_on_some_matrices_alone(targets):
    plain = student_of(targets, rank=4)  # too small to lie beside the input
    quick = copy.deepcopy(plain)
    quick.fuse(checkpointing=False)
    sums, expected = gradients(plain, KNOBS["lca"], True, None)
    found, ours = gradients(quick, KNOBS["lca"], True, None)
    assert torch.allclose(found, sums, rtol=1e-5, atol=1e-4) and ours.keys() == expected.keys()
    for name, each in expected.items():
        assert (ours[name] - each).abs().max() <= 2e-5 * each.abs().max() + 1e-6, name


@pytest.mark.parametrize("taught", ["no", "text", "context"])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_losses_through_a_frozen_head_equal_those_through_any(chunk, taught):
    ids, kinds, positions = batch_of()
    draw = torch.Generator().manual_seed(1)
    hidden = torch.randn(2, 40, 8, generator=draw, requires_grad=True)
    weight, theirs = torch.randn(parts.VOCABULARY, 8, generator=draw), torch.randn(2, 40, 8, generator=draw)
    places = losses.places_of(kinds, positions, taught == "context")
    teacher = None if taught == "no" else theirs
    text = 1 if taught == "no" else 0
    head = lambda rows: rows @ weight.T  # noqa: E731
    plain = losses.loss_sums(hidden, ids, places, head, teacher, head, chunk)
    expected = torch.autograd.grad(2 * plain[text] + 3 * plain[2], hidden)[0]
    sums = losses.frozen_sums(hidden, ids, places, weight, teacher, chunk)
    found = torch.autograd.grad(2 * sums[text] + 3 * sums[2], hidden)[0]
    assert torch.allclose(sums, plain, rtol=1e-5, atol=1e-5)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(losses.frozen_sums(hidden, ids, places, weight, teacher, chunk), plain, rtol=1e-5)


KERNELS = """
import torch
from lca.finetune import kernels, triton_kernels
torch.manual_seed(0)
near = lambda ours, plain: [torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
                            for one, other in zip(ours, plain, strict=True)]
x, weight, grad, more = torch.randn(5, 36), torch.randn(36), torch.randn(5, 36), torch.randn(5, 36)
out, scale = kernels.norm(x, weight, 1e-5)
near(triton_kernels.norm(x, weight, 1e-5), (out, scale))
buffer = torch.randn(5, 44)
near(triton_kernels.norm(x, weight, 1e-5, buffer), (out, scale))
near([buffer[:, :36]], [out])
for added in (more, None):
    near(triton_kernels.norm_backward(grad, x, weight, scale, added),
         kernels.norm_backward(grad, x, weight, scale, added))
qkv, positions, table = torch.randn(5, 7, 8), torch.tensor([3, 0, 1, 9, 2]), torch.randn(2, 10, 4)
ours, plain = qkv.clone(), qkv.clone()
triton_kernels.rope(ours, positions, table, 5)
kernels.rope(plain, positions, table, 5)
near([ours], [plain])
parts = qkv.split([3, 2, 2], 1)
near([triton_kernels.rope_backward(*parts, positions, table)], [kernels.rope_backward(*parts, positions, table)])
both, inner = torch.randn(5, 60), torch.randn(5, 30)
near([triton_kernels.swiglu(both)], [kernels.swiglu(both)])
near([triton_kernels.swiglu(both, buffer)], [kernels.swiglu(both)])
near([buffer[:, :30]], [kernels.swiglu(both)])
near(triton_kernels.swiglu_backward(inner, both), kernels.swiglu_backward(inner, both))
for words in (37, 5000):
    for theirs in (None, torch.randn(5, words)):
        for gradient in (False, True):
            logits, target = torch.randn(5, words), torch.randint(0, words, (5,))
            logits[:, 3] = logits[:, 30] = 9.0  # of two that are likeliest the first counts
            target[:2] = torch.tensor([3, 30])
            ours, plain = logits.clone(), logits.clone()
            found = triton_kernels.divergence(ours, theirs, target, gradient)
            near([found], [kernels.divergence(plain, theirs, target, gradient)])
            near([ours], [plain])
            assert found[2, 0] == 1 and found[2, 1] == 0
"""


def test_kernels_for_a_gpu_say_what_those_in_pytorch_say():
    pytest.importorskip("triton")
    run = subprocess.run([sys.executable, "-c", KERNELS], text=True, capture_output=True,
                         env={**os.environ, "PYTHONPATH": str(PACKAGE), "TRITON_INTERPRET": "1"})
    assert run.returncode == 0, run.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_losses_and_gradients_on_a_gpu_are_as_good_as_those_of_the_modules():
    exact = student_of()
    _, expected = gradients(exact, KNOBS["lca"], True, None)
    errors = []
    for fuse in (False, True):
        student = student_of(dtype=torch.bfloat16).cuda()
        if fuse:
            student.fuse(checkpointing=False)
        ids, kinds, _ = batch_of(length=90)
        positions = torch.arange(90).repeat(2, 1)
        places = losses.places_of(kinds, positions, True).to(lambda each: each.cuda())
        with torch.autocast("cuda", torch.bfloat16):
            sums = student(ids.cuda(), positions.cuda(), places, KNOBS["lca"], True)
        (2 * sums[0] + 3 * sums[2]).backward()
        found = {name: each.grad.cpu() for name, each in student.named_parameters() if each.requires_grad}
        off = sum((found[name] - each).square().sum() for name, each in expected.items())
        errors.append(float((off / sum(each.square().sum() for each in expected.values())).sqrt()))
    assert errors[1] < 1.2 * errors[0] + 1e-3


def test_a_model_without_a_fused_form_says_why(folder, tmp_path):
    with torch.device("cpu"):
        assert "is no Llama" in fused.obstacle(tiny("qwen2"))
    assert fused.obstacle(parts.tiny_llama()) is None
    for changes, line in (({"lora": None}, "all weights are trained"),
                          ({"lora": {"targets": ["q_proj", "lm_head"]}}, "lm_head has an adapter")):
        config = config_parse(parts.settings(folder, tmp_path / "run", fused=True, **changes))
        with pytest.raises(ConfigError, match=line):
            finetune(config)


def test_a_fused_run_goes_on_bit_for_bit_and_as_a_plain_one(folder, tmp_path):
    def run(name, **changes):
        done = finetune(config_parse(parts.settings(folder, tmp_path / name, **changes))).steps
        return losses_of(tmp_path / name), done
    plain, _ = run("plain", fused=False)
    whole, _ = run("whole", fused=True)
    for done in (1, 2):
        assert run("parts", fused=True, seconds=0)[1] == done  # the time is over after a step
    again, done = run("parts", fused=True)
    assert again == whole and done == 6
    for one, other in zip(whole, plain, strict=True):
        assert abs(float(one["loss"]) - float(other["loss"])) < 1e-3 * float(other["loss"])


@pytest.mark.parametrize("packed", [False, True])
def test_a_teacher_that_reads_a_part_of_a_row(packed):
    documents = torch.tensor([0, 17, 90, 107, 180], dtype=torch.int32) if packed else None
    assert losses.documents_cut(torch.tensor([0, 30, 90, 150, 180]), 90, 50).tolist() == [0, 30, 50, 100]
    ids, kinds, positions = batch_of(length=90)
    if not packed:
        positions = torch.arange(90).repeat(2, 1)
    whole, near = (losses.places_of(kinds, positions, True, reach) for reach in (None, 50))
    assert near.answer.equal(whole.answer)
    assert near.text.tolist() == [place for place in whole.text.tolist() if place % 90 < 50]
    assert near.context.tolist() == [place for place in whole.context.tolist() if place % 90 < 50]
    found = []
    for fused in (False, True):
        student = student_of()
        if fused:
            student.fuse(False)
        expected = student(ids, positions, near, KNOBS["lca"], True, documents).detach()
        student._reach = 50
        sums, grads = gradients(student, KNOBS["lca"], True, documents, 50)
        assert torch.allclose(sums, expected, rtol=1e-5)  # what the teacher says of a token depends on those before it
        found.append(grads)
    for name, grad in found[0].items():
        assert torch.allclose(grad, found[1][name], rtol=1e-3, atol=1e-5), name
