"""lca.Engine as a model of lm-evaluation-harness: its numbers are those of transformers."""

import json
import os
import pathlib
import re
import subprocess
import sys

import numpy
import pytest
import torch

import lca
from lca.lm_eval import continuations_score

lm_eval = pytest.importorskip("lm_eval", reason="lm_eval (lm-evaluation-harness) is not installed")
DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "evaluation-ruler.md"
STORY = "The lighthouse keeper wrote down the weather every evening. The sea was calm, and the wind came from the west. "
SMALL = {"group": 4, "window": 32, "sink": 2, "summary_queries": 4}


class Request:
    def __init__(self, *args):
        self.args = args


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Llama with a byte-level tokenizer that has a begin and an end token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    path = tmp_path_factory.mktemp("tiny")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: at for at, token in enumerate(["<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B",
                                                             special_tokens=[("<s>", 0)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(path)
    torch.manual_seed(3)
    LlamaForCausalLM(LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=8192, bos_token_id=0, eos_token_id=1,
        initializer_range=0.3)).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def truth(folder):
    """ln p of every token of ids but the first, and whether each is the likeliest, by transformers."""
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def score(ids):
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, :-1].double()
        targets = torch.tensor(ids[1:])
        chosen = torch.log_softmax(logits, -1)[torch.arange(len(targets)), targets]
        return chosen.numpy(), (logits.argmax(-1) == targets).numpy()

    return score


@pytest.fixture(scope="module")
def model(folder):
    return lca.lm_eval.register()(str(folder), "cpu", precision="f32", method="dense")


def pairs_of(model):
    """Contexts that share beginnings, or all, or nothing; the harness counts spaces at their end to what follows."""
    contexts = [STORY * 3 + "Who wrote?", STORY * 3 + "Who read?", STORY * 2, "Another text", STORY * 3 + "Who wrote?"]
    return [(context, continuation) for context in contexts for continuation in (" the keeper", " x", " nobody at all")]


def test_loglikelihoods_are_those_of_transformers(model, truth):
    pairs = pairs_of(model)
    scores = model.loglikelihood([Request(*pair) for pair in pairs], disable_tqdm=True)
    for (context, continuation), (logprob, greedy) in zip(pairs, scores, strict=True):
        whole, first = model.tok_encode(context + continuation), len(model.tok_encode(context.rstrip()))
        assert whole[0] == 0 and whole[1] != 0, "one begin token"
        wanted, likeliest = truth(whole)
        assert abs(logprob - wanted[first - 1:].sum()) < 1e-3
        assert greedy == bool(likeliest[first - 1:].all())
    assert len({round(logprob, 6) for logprob, _ in scores}) == 12, "equal pairs score alike, others do not"


def test_greedy_continuations_are_found(model):
    reply = model.generate_until([Request("Once upon", {"until": [], "max_gen_toks": 6})], disable_tqdm=True)[0]
    ids = model.tok_encode("Once upon")
    tokens = model.engine.generate([ids], max_tokens=6)[0].tokens
    (score,) = continuations_score(model.engine, [(ids, tokens)])
    assert score.greedy and reply == model.engine.decode(tokens)
    assert not continuations_score(model.engine, [(ids, [*tokens[:-1], (tokens[-1] + 1) % 256])])[0].greedy


def test_a_text_without_context_follows_the_begin_token(model, truth):
    (logprob, _), = model.loglikelihood([Request("", "Some words")], disable_tqdm=True)
    assert abs(logprob - truth([0, *model.engine.encode("Some words")])[0].sum()) < 1e-3


def test_long_contexts_are_cut_from_the_left(folder, truth):
    short = lca.lm_eval.register()(str(folder), "cpu", precision="f32", method="dense", max_length=40)
    (logprob, _), = short.loglikelihood([Request(STORY, " the end")], disable_tqdm=True)
    ids = short.tok_encode(STORY.rstrip() + "  the end")[-41:]
    assert abs(logprob - truth(ids)[0][-len("  the end"):].sum()) < 1e-3


def test_whole_texts_score_as_in_transformers_window_by_window(folder, model, truth):
    whole = model.loglikelihood_rolling([Request(STORY)], disable_tqdm=True)[0]
    ids = model.tok_encode(STORY)
    assert abs(whole - truth([0, *ids])[0].sum()) < 1e-3
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    short = lca.lm_eval.register()(str(folder), "cpu", precision="f32", method="dense", max_length=50)
    wanted = 0.0
    for context, predicted in map(make_disjoint_window, get_rolling_token_windows(ids, 0, 50, 1)):
        wanted += truth([*context, *predicted])[0][-len(predicted):].sum()
    assert abs(short.loglikelihood_rolling([Request(STORY)], disable_tqdm=True)[0] - wanted) < 1e-3


def test_a_condensed_cache_scores_alike_with_and_without_shared_beginnings(folder):
    condensed = lca.lm_eval.register()(str(folder), "cpu", precision="f32", preset="training", **SMALL)
    pairs = pairs_of(condensed)
    scores = condensed.loglikelihood([Request(*pair) for pair in pairs], disable_tqdm=True)
    for (context, continuation), (logprob, _) in zip(pairs, scores, strict=True):
        whole, first = condensed.tok_encode(context + continuation), len(condensed.tok_encode(context.rstrip()))
        alone = condensed.engine.score(whole).logprobs[first:].sum(dtype=numpy.float64)
        assert abs(logprob - alone) < 1e-3


def test_what_contexts_share_is_read_once(model, monkeypatch):
    read = []
    plain = lca.engine.Session.read

    def counted(self, ids, progress=None):
        read.append(len(ids))
        return plain(self, ids, progress)

    monkeypatch.setattr(lca.engine.Session, "read", counted)
    pairs = pairs_of(model)
    model.loglikelihood([Request(*pair) for pair in pairs], disable_tqdm=True)
    longest = len(model.tok_encode(STORY * 3 + "Who wrote?"))
    assert sum(read) < longest + 60, "not each of five contexts, let alone of fifteen pairs"


def test_replies_end_at_their_stops_and_sampling_takes_its_arguments(model):
    greedy = {"until": [], "max_gen_toks": 12, "do_sample": False}
    prompts = [STORY, "One, two,", "Once upon"]
    replies = model.generate_until([Request(prompt, greedy) for prompt in prompts], disable_tqdm=True)
    alone = [model.engine.generate(model.tok_encode(prompt), max_tokens=12).text for prompt in prompts]
    assert replies == alone
    stop = replies[0][3:5]
    cut, whole = model.generate_until([Request(STORY, {**greedy, "until": [stop]}), Request(STORY, greedy)],
                                      disable_tqdm=True)
    assert cut == replies[0][:replies[0].index(stop)] and whole == replies[0]
    warm = {"until": [], "max_gen_toks": 8, "do_sample": True, "temperature": 2.0, "seed": 5}
    one, other = model.generate_until([Request("Once", warm), Request("Once", {**warm, "seed": 6})], disable_tqdm=True)
    assert one != other


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)


def test_the_command_of_the_docs_scores_a_local_task_with_prompts_of_4k_tokens(folder, tmp_path, truth, model):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "long_choice.yaml").write_text(blocks("yaml")[0])
    line = json.loads(blocks("json")[0])
    lines = [{**line, "document": STORY[at:] + STORY * 35, "answer": at % 2} for at in range(3)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    (command,) = [text for text in blocks("sh") if "long_choice" in text]
    words = command.replace("pretrained=smollm2", f"pretrained={folder},precision=f32,method=dense").split()
    assert words[:3] == ["python", "-m", "lca.lm_eval"]
    surroundings = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache"),
                    "HF_HOME": str(tmp_path / "home")}
    ran = subprocess.run([sys.executable, *words[1:], "--output_path", str(tmp_path / "out"), "--log_samples"],
                         cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    (results,) = (tmp_path / "out").rglob("results_*.json")
    (samples,) = (tmp_path / "out").rglob("samples_*.jsonl")
    right = 0
    for sample in map(json.loads, samples.read_text().splitlines()):
        context = sample["arguments"]["gen_args_0"]["arg_0"]
        assert len(model.tok_encode(context)) > 4000
        wanted = []
        for choice in line["choices"]:
            whole = model.tok_encode(context + " " + choice)
            wanted.append(truth(whole)[0][len(model.tok_encode(context)) - 1:].sum())
        told = [float(response[0][0]) for response in sample["resps"]]
        assert numpy.allclose(told, wanted, atol=2e-3)
        right += int(numpy.argmax(wanted)) == int(sample["target"])
    accuracy = json.loads(results.read_text())["results"]["long_choice"]["acc,none"]
    assert abs(accuracy - right / 3) < 1e-6


def test_without_the_harness_the_command_says_what_to_install(tmp_path):
    (tmp_path / "lm_eval.py").write_text("raise ImportError('no', name='lm_eval')\n")
    ran = subprocess.run([sys.executable, "-m", "lca.lm_eval", "--tasks", "x"], cwd=tmp_path, capture_output=True,
                         text=True, check=False)
    assert ran.returncode == 1 and ran.stderr.strip().splitlines() == [
        "lca.lm_eval: lm-evaluation-harness is not installed; pip install lm_eval gets it"]
