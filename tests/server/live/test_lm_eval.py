"""lm-evaluation-harness over /v1/completions against the logits of the program."""

import json
import math
import random
import subprocess

import numpy
import pytest

from serving import PROGRAM
from tiny_checkpoints import safetensors_read

WORDS = "the cat a dog and sat on mat under tree slowly red blue seven".split()
TASK = """
task: tiny_choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: ""
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


def questions_make():
    """Questions with two or three choices; the last two are longer than the window of exact tokens."""
    pick = random.Random(3)
    lengths = [4, 15, 60, 260, 300]
    return [{"question": " ".join(pick.choices(WORDS, k=length)),
             "choices": [" " + " ".join(pick.choices(WORDS, k=pick.randint(1, 5))) for _ in range(2 + at % 2)],
             "answer": 0} for at, length in enumerate(lengths)]


def sum_expected(model, tokens, begin, folder):
    """Log-probability of tokens[begin:] by `lca logits`."""
    out = folder / "logits.safetensors"
    subprocess.run([PROGRAM, "logits", model, "--tokens", ",".join(map(str, tokens)), "--out", out,
                    "--precision", "f32"], check=True, capture_output=True)
    rows = safetensors_read(out)["logits"].astype(numpy.float64)
    normal = rows - rows.max(axis=1, keepdims=True)
    normal -= numpy.log(numpy.exp(normal).sum(axis=1, keepdims=True))
    return sum(normal[at - 1, tokens[at]] for at in range(begin, len(tokens)))


@pytest.mark.parametrize("tokenized", [True, False], ids=["ids", "text"])
def test_sums_are_those_of_the_logits(plain, models, tmp_path, monkeypatch, tokenized):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    import lm_eval
    from lm_eval.tasks import TaskManager

    questions = questions_make()
    data = tmp_path / "questions.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in questions))
    (tmp_path / "tiny_choice.yaml").write_text(TASK.format(file=data))
    results = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={"model": "tiny", "base_url": plain.url + "/v1/completions", "tokenizer": str(models["llama"]),
                    "tokenizer_backend": "huggingface", "tokenized_requests": tokenized, "num_concurrent": 4,
                    "max_length": 4096, "max_retries": 1},
        tasks=["tiny_choice"], batch_size=2, bootstrap_iters=0, log_samples=True,
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False))
    samples = sorted(results["samples"]["tiny_choice"], key=lambda sample: sample["doc_id"])
    assert len(samples) == len(questions)
    worst = 0.0
    for question, sample in zip(questions, samples):
        context = list(question["question"].encode())
        for choice, answer in zip(question["choices"], sample["filtered_resps"]):
            tokens = context + list(choice.encode())
            expected = sum_expected(models["llama"], tokens, len(context), tmp_path)
            worst = max(worst, abs(float(answer[0]) - expected))
    print(f"worst difference {worst:.2e}")
    assert worst < 1e-4 and not math.isnan(worst)
