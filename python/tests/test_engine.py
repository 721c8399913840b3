"""lca.Engine on the default model."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest

import lca

STORY = "The lighthouse keeper wrote down the weather every evening. " * 40


@pytest.fixture(scope="module")
def engine(smollm2):
    return lca.Engine(smollm2, "cpu", precision="f32", window=64, group=8)


def test_facts_and_settings(engine):
    assert engine.info["architecture"] == "llama" and engine.info["layers"] == 30
    assert len(engine.settings) == 30
    assert engine.settings[0]["window"] == 64 and engine.settings[0]["semantic_pool"] == "select"


def test_text_goes_to_tokens_and_back(engine):
    assert engine.decode(engine.encode("A short text.")) == "A short text."


def test_a_reply_is_the_same_in_one_piece_in_pieces_and_in_a_batch(engine):
    prompt = STORY[:300] + "In the morning"
    reply = engine.generate(prompt, max_tokens=12, logprobs=True)
    assert reply.text == str(reply) and len(reply.tokens) == len(reply.logprobs) == 12
    assert reply.reason == "length" and reply.prompt_tokens == len(engine.encode(prompt))
    assert "".join(engine.generate(prompt, max_tokens=12, stream=True)) == reply.text
    batch = engine.generate([prompt, "One, two,"], max_tokens=12)
    assert batch[0].text == reply.text and batch[1].text == engine.generate("One, two,", max_tokens=12).text


def test_messages_are_written_in_the_models_chat_format(engine):
    messages = [{"role": "user", "content": "Name a colour."}]
    ids = engine.prompt_tokens(messages)
    assert engine.decode(ids, with_special=True).endswith("<|im_start|>user\nName a colour.<|im_end|>\n"
                                                          "<|im_start|>assistant\n")
    one = engine.generate(messages, max_tokens=5)
    assert engine.generate([messages, messages], max_tokens=5)[1].text == one.text
    assert engine.generate([("user", "Name a colour.")], max_tokens=5).text == one.text
    with pytest.raises(ValueError, match="role"):
        engine.generate([{"role": "robot", "content": "?"}])


def test_a_conversation_in_a_session_reads_only_what_is_new(engine):
    session = engine.session()
    messages = [{"role": "user", "content": "Name a colour."}]
    first = session.generate(messages, max_tokens=5)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "Another."}]
    second = session.generate(messages, max_tokens=5)
    assert second.reused_tokens > 20 and second.text == engine.generate(messages, max_tokens=5).text


def test_stops_and_seeds(engine):
    base = engine.generate("One, two, three,", max_tokens=16)
    cut = engine.generate("One, two, three,", max_tokens=16, stop=base.text[3:6])
    assert cut.reason == "stop_string" and base.text.startswith(cut.text) and len(cut.text) <= 3
    warm = {"max_tokens": 8, "temperature": 1.0, "top_p": 0.9, "seed": 5}
    assert engine.generate("Once", **warm).text == engine.generate("Once", **warm).text
    with pytest.raises(ValueError, match="top_p"):
        engine.generate("Once", top_p=2.0)


def test_scores_are_the_log_probabilities_of_the_logits(engine):
    score = engine.score(STORY[:400])
    logits = engine.logits(STORY[:400]).astype(numpy.float64)
    assert logits.shape == (len(score.tokens), engine.info["vocabulary"])
    logits -= logits.max(-1, keepdims=True)
    normal = logits - numpy.log(numpy.exp(logits).sum(-1, keepdims=True))
    truth = normal[numpy.arange(len(score.tokens) - 1), score.tokens[1:]]
    assert numpy.isnan(score.logprobs[0]) and numpy.allclose(score.logprobs[1:], truth, atol=1e-4)
    assert abs(engine.perplexity(STORY[:400]) - numpy.exp(-truth.mean())) < 1e-3
    assert abs(score.total - truth.sum()) < 1e-2
    with pytest.raises(ValueError, match="two tokens"):
        engine.perplexity("a", length=1)


def test_sessions_continue_fork_mark_and_come_back_from_a_file(engine, tmp_path):
    session = engine.session().read(STORY)
    length = len(session)
    assert session.cache_bytes < session.dense_bytes
    session.mark()
    assert session.marks() == [length]
    first = session.generate("The keeper", max_tokens=6)
    assert len(session) > length
    other = session.fork(length)
    assert other.tokens == session.tokens[:length]
    session.truncate(length)
    path = tmp_path / "keeper.session"
    session.save(path)
    again = engine.load_session(path)
    for where in (session, other, again):
        assert where.generate("The keeper", max_tokens=6).text == first.text
    assert session.keep_prefix(STORY) == length


def test_tokens_one_by_one_lead_where_a_prompt_leads(engine):
    ids = engine.encode("The sea was calm that")
    session = engine.session().read(ids[:-1])
    session.append(ids[-1])
    assert numpy.allclose(session.logits(), engine.session().read(ids).logits(), atol=1e-3)


def test_progress_is_told_and_can_stop(smollm2):
    engine = lca.Engine(smollm2, "cpu", chunk=64, window=64)
    seen = []
    engine.session().read(STORY, lambda done, total: seen.append((done, total)))
    assert len(seen) > 2 and seen[-1][0] == seen[-1][1]
    with pytest.raises(InterruptedError):
        engine.session().read(STORY, lambda done, total: False)


def test_closing_a_stream_ends_the_reply(engine):
    session = engine.session()
    stream = session.generate("Count: 1, 2, 3,", max_tokens=4000, stream=True, ignore_end=True)
    next(stream)
    stream.close()
    assert len(session) < 1000


def test_other_threads_run_while_the_engine_works(engine):
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.002)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.monotonic()
    engine.session().read(STORY * 2)
    spent = time.monotonic() - start
    done.set()
    thread.join()
    assert max(later - earlier for earlier, later in zip(ticks, ticks[1:])) < spent / 2


def test_ctrl_c_stops_a_long_prompt(smollm2):
    code = ("import sys, lca\n"
            f"engine = lca.Engine({str(smollm2)!r}, 'cpu', window=64)\n"
            "session = engine.session()\n"
            "print('ready', flush=True)\n"
            "try:\n"
            "    session.read('The sea was calm. ' * 20000)\n"
            "except KeyboardInterrupt:\n"
            "    print('stopped', flush=True)\n"
            "    session.read('And then')\n"
            "    print('on', flush=True)\n")
    # A job in the background of a shell ignores the signal, and so would its children.
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert process.stdout.readline() == "ready\n"
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    rest = process.communicate(timeout=60)[0]
    assert rest == "stopped\non\n" and time.monotonic() - start < 20


def test_errors(tmp_path, smollm2):
    with pytest.raises(FileNotFoundError):
        lca.Engine(tmp_path / "nothing.gguf")
    with pytest.raises(TypeError, match="unknown knob grouping"):
        lca.Engine(smollm2, grouping=4)
    with pytest.raises(ValueError, match="group"):
        lca.Engine(smollm2, "cpu", group=0)
    with pytest.raises(ValueError, match="precision"):
        lca.Engine(smollm2, "cpu", precision="f8")
    with pytest.raises(ValueError, match="layers"):
        lca.Engine(smollm2, "cpu", group=[4, 8])


def test_settings_per_layer(smollm2):
    engine = lca.Engine(smollm2, "cpu", preset="training", group=[8] * 29 + [16])
    assert [layer["group"] for layer in engine.settings[-2:]] == [8, 16]
    assert engine.settings[0]["semantic_pool"] == "weighted"


# --- the default model as a folder ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(smollm2, tmp_path_factory):
    target = tmp_path_factory.mktemp("export") / "smollm2"
    home = {**os.environ, "LCA_HOME": str(pathlib.Path(smollm2).parent)}
    subprocess.run([sys.executable, "-m", "lca.export", "smollm2", target], check=True, env=home,
                   stdout=subprocess.DEVNULL)
    return target


def test_transformers_computes_the_engines_logits_from_the_exported_folder(folder, smollm2):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.float32
    engine = lca.Engine(smollm2, "cpu", precision="f32", method="dense")
    text = "In 1987 the café's 12,345 guests saw  the sea.\n\nÉtienne said: don't!" + STORY[:200]
    ids = tokenizer(text)["input_ids"]
    assert ids == engine.encode(text)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].numpy()
    ours = engine.logits(ids)
    assert numpy.max(numpy.abs(logits - ours)) < 2e-3 * numpy.max(numpy.abs(logits))
    assert (logits.argmax(-1) == ours.argmax(-1)).mean() > 0.99
    chat = [{"role": "user", "content": "Hello"}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert ids == engine.prompt_tokens(chat)


def test_the_engine_reads_the_exported_folder(folder, smollm2):
    text = "The lighthouse"
    one, other = lca.Engine(folder, "cpu", precision="f32"), lca.Engine(smollm2, "cpu", precision="f32")
    assert one.encode(text) == other.encode(text)
    assert numpy.allclose(one.logits(text), other.logits(text), atol=2e-2)
