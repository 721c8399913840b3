"""Mixing, reading and comparing: every text once, the same order again, and what overlaps."""

import json
import random

import numpy
import pytest

import lca.export
from lca.data import (
    ANSWER,
    NONE,
    TEXT,
    MixOptions,
    Packed,
    PackOptions,
    RowOptions,
    Source,
    join,
    mix,
    overlap,
    pack,
    store,
    tokenizer_open,
    words,
)
from lca.data.__main__ import main
from lca.data.mixing import Mixer
from lca.data.ngrams import ngram_hashes, word_hashes
from lca.data.tokenizers import BytesTokenizer, chat_encode, chat_form, fingerprint

TOKENIZER = BytesTokenizer()


def prose(draw, sentences):
    return "".join(" ".join(draw.choices(words.WORDS, k=9)) + ". " for _ in range(sentences))


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Texts of many lengths and a few conversations."""
    folder, draw = tmp_path_factory.mktemp("text"), random.Random(4)
    (folder / "books").mkdir()
    for number in range(40):
        (folder / "books" / f"{number}.txt").write_text(prose(draw, draw.choice((3, 20, 90))))
    with open(folder / "chat.jsonl", "w") as file:
        for _ in range(20):
            file.write(json.dumps({"messages": [{"role": "user", "content": prose(draw, 2)},
                                                {"role": "assistant", "content": prose(draw, 3)}]}) + "\n")
    sources = [Source("books", str(folder / "books")), Source("chat", str(folder / "chat.jsonl"), "messages")]
    pack(sources, folder / "packed", TOKENIZER, PackOptions(keep=1.0, tokens="all", shard_tokens=10007))
    return folder / "packed"


def options(length=2048, **changes):
    return MixOptions(RowOptions(length), **{"shard_tokens": 10000, **changes})


def test_a_row_of_packed_text_knows_its_documents(packed):
    data = Packed(packed)
    ids, kinds, records = data.slice(0, data.tokens)
    for number in (0, 3, data.row_count(1000) - 1):
        row, row_kinds, starts = data.row(number, 1000)
        assert numpy.array_equal(row, ids[number * 1000:(number + 1) * 1000])
        inside = [at - number * 1000 for at in records["start"] if number * 1000 < at < (number + 1) * 1000]
        assert starts.tolist() == [0, *inside] and not row_kinds[starts].any()
        others = numpy.setdiff1d(numpy.arange(1000), starts)
        assert numpy.array_equal(row_kinds[others], kinds[number * 1000:(number + 1) * 1000][others])
    assert data.row_count(1000) * 1000 <= data.tokens < (data.row_count(1000) + 1) * 1000


def test_batches_have_every_row_once_an_epoch_in_an_order_of_their_own(packed):
    data = Packed(packed)
    count = data.row_count(1000) // 6 * 6
    orders = []
    for epoch_seed in (1, 1, 2):
        found = [row for batch in data.batches(3, 1000, seed=epoch_seed) for row in batch.rows.tolist()]
        assert len(set(found)) == len(found) == data.row_count(1000) // 3 * 3
        orders.append(found)
    assert orders[0] == orders[1] != orders[2]
    ranks = [[batch.rows.tolist() for batch in data.batches(3, 1000, seed=1, rank=rank, world=2)] for rank in (0, 1)]
    assert sum((a + b for a, b in zip(*ranks)), []) == orders[0][:count]
    twice = data.batches(3, 1000, seed=1, epochs=2)
    both = [batch.rows.tolist() for batch in twice]
    assert sum(both[:len(both) // 2], []) == orders[0] != sum(both[len(both) // 2:], [])


def test_batches_go_on_from_their_state(packed):
    data = Packed(packed)
    whole = [batch.ids for batch in data.batches(2, 1500, seed=3, epochs=3)]
    for stop in (0, 1, len(whole) // 3, len(whole) // 3 + 1, len(whole) - 1):
        begun = data.batches(2, 1500, seed=3, epochs=3)
        for _ in range(stop):
            next(begun)
        state = json.loads(json.dumps(begun.state_dict()))
        rest = Packed(packed).batches(2, 1500, seed=3, epochs=3)
        rest.load_state_dict(state)
        assert len(rest) == len(whole) - stop
        assert all(numpy.array_equal(batch.ids, wanted) for batch, wanted in zip(rest, whole[stop:], strict=True))
    with pytest.raises(ValueError, match="saved with seed 3, this is 4"):
        data.batches(2, 1500, seed=4).load_state_dict(state)


def test_a_batch_has_bounds_positions_and_weights(packed):
    batch = next(Packed(packed).batches(3, 1000, text_weight=0.5, answer_weight=3.0))
    bounds = batch.cu_seqlens
    assert bounds.dtype == numpy.int32 and bounds[0] == 0 and bounds[-1] == 3000 and (numpy.diff(bounds) > 0).all()
    assert {1000, 2000} <= set(bounds.tolist())
    flat = batch.positions.reshape(-1)
    assert not flat[bounds[:-1]].any() and all(flat[b - 1] == b - a - 1 for a, b in zip(bounds, bounds[1:]))
    assert set(numpy.unique(batch.weights[batch.kinds == TEXT])) == {0.5}
    assert not batch.weights[batch.kinds == NONE].any()


def test_without_masks_a_row_is_one_document(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name * 500)
    pack([Source("x", str(tmp_path))], tmp_path / "out", TOKENIZER, PackOptions(keep=1.0, mask_documents=False))
    batch = next(Packed(tmp_path / "out").batches(1, 1200))
    assert batch.cu_seqlens.tolist() == [0, 1200] and (batch.kinds == TEXT).sum() == 1199


def test_readers_say_what_is_wrong(packed, tmp_path):
    data = Packed(packed)
    for call, line in ((lambda: data.batches(2), "no row length of its own"), (lambda: data.row(10 ** 6, 500), "rows"),
                       (lambda: data.batches(10 ** 6, 1000), "less than one batch"),
                       (lambda: data.batches(1, 1000, rank=2, world=2), "rank is one of"),
                       (lambda: Packed(tmp_path), "no manifest.json")):
        with pytest.raises((ValueError, IndexError, FileNotFoundError), match=line):
            call()


def test_mixed_rows_use_every_text_once_and_leave_conversations_out_of_tasks(packed, tmp_path):
    told = mix(packed, tmp_path / "out", options())
    data, text = Packed(tmp_path / "out"), Packed(packed)
    assert told["rows"] == data.row_count(2048) == text.row_count(2048) and told["epochs"] == 1.0
    assert told["task_rows"] == told["rows"] // 2 and 0 < told["chat_rows"] < told["task_rows"]
    plain = {text.slice(at * 2048, (at + 1) * 2048)[0].tobytes() for at in range(text.row_count(2048))}
    seen = set()
    for number in range(told["rows"]):
        ids, kinds, starts = data.row(number, 2048)
        if data.slice(number * 2048, number * 2048 + 1)[2]["source"][0] < 2:
            assert ids.tobytes() in plain and ids.tobytes() not in seen and ANSWER not in kinds
            seen.add(ids.tobytes())
        else:
            assert starts.tolist() == [0] and (kinds == ANSWER).any()
            assert not (ids[kinds == TEXT] >= 256).any()  # nothing of a chat format in the text
    assert data.sources[:2] == ["books", "chat"] and "task:passage" in data.sources
    assert "# Text with planted tasks" in (tmp_path / "out" / "statistics.md").read_text()
    with pytest.raises(ValueError, match="rows of 2048"):
        data.batches(1, 1000)
    with pytest.raises(ValueError, match="has tasks already"):
        mix(tmp_path / "out", tmp_path / "again", options())


def test_tasks_use_all_text_alike_where_most_of_it_is_conversations(tmp_path):
    draw = random.Random(7)
    (tmp_path / "books").mkdir()
    for number in range(6):
        (tmp_path / "books" / f"{number}.txt").write_text(prose(draw, 60))
    with open(tmp_path / "chat.jsonl", "w") as file:
        for _ in range(400):
            file.write(json.dumps({"messages": [{"role": "user", "content": prose(draw, 2)},
                                                {"role": "assistant", "content": prose(draw, 3)}]}) + "\n")
    sources = [Source("books", str(tmp_path / "books")), Source("chat", str(tmp_path / "chat.jsonl"), "messages")]
    for source in sources:
        pack([source], tmp_path / f"packed-{source.label}", TOKENIZER, PackOptions(keep=1.0, tokens="all"))
    join([tmp_path / "packed-books", tmp_path / "packed-chat"], tmp_path / "packed")
    text = Packed(tmp_path / "packed")
    mixer = Mixer(text, TOKENIZER, options(length=512, task_share=1.0))
    first, last, before = mixer._plain
    assert text.tokens > 5 * int((last - first).sum()) and (before[1:] == numpy.cumsum(last - first)[:-1]).all()
    rows = [mixer._running(start) for start in range(0, text.tokens, 512)]
    assert len({row.tobytes() for row in rows}) > 0.9 * len(rows)  # each begins at a place of its own
    assert all(len(row) == 512 and (row < 256).all() for row in rows)  # nothing of a chat format


class Killed(BaseException):
    pass


def test_mixing_goes_on_after_a_kill_and_repeats_itself(packed, tmp_path, monkeypatch):
    mix(packed, tmp_path / "whole", options(seed=5))
    add, calls = store.Store.shard_add, []

    def dying(self, *arguments):
        calls.append(None)
        if len(calls) == 3:
            raise Killed
        add(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(store.Store, "shard_add", dying)
        with pytest.raises(Killed):
            mix(packed, tmp_path / "killed", options(seed=5))
    assert mix(packed, tmp_path / "killed", options(seed=5)) == mix(packed, tmp_path / "whole", options(seed=5))
    assert Packed(tmp_path / "killed").fingerprint == Packed(tmp_path / "whole").fingerprint
    mix(packed, tmp_path / "other", options(seed=6))
    assert Packed(tmp_path / "other").fingerprint != Packed(tmp_path / "whole").fingerprint


def test_text_is_used_again_where_more_rows_are_asked_for(packed, tmp_path):
    count = Packed(packed).row_count(2048) + 4
    told = mix(packed, tmp_path / "out", options(count=count, task_share=1.0))
    assert told["rows"] == told["task_rows"] == count and told["epochs"] > 1


def test_the_text_must_be_of_the_same_tokenizer(packed, tmp_path):
    class Other(BytesTokenizer):
        def encode(self, texts):
            return [ids[::-1] for ids in super().encode(texts)]

    with pytest.raises(ValueError, match="packed with another tokenizer"):
        mix(packed, tmp_path / "out", options(), Other())


def test_mixtures_of_other_parts_share_no_text(packed, tmp_path):
    text = Packed(packed)
    seen = []
    for number, part in enumerate(((0.0, 0.3), (0.3, 1.0))):
        mixer = Mixer(text, TOKENIZER, options(1024, part=part, task_share=0.0, seed=number))
        found = {mixer.text_row(row)[0].tobytes() for row in range(2 * mixer.text_rows)}
        assert len(found) == mixer.text_rows
        seen.append(found)
    assert not seen[0] & seen[1] and len(seen[0] | seen[1]) == text.row_count(1024)
    with pytest.raises(ValueError, match="this part of them, less than a row"):
        Mixer(text, TOKENIZER, options(1024, part=(0.0, 0.001)))
    with pytest.raises(ValueError, match="begins and ends"):
        options(part=(0.5, 0.2)).check()
    with pytest.raises(SystemExit):
        main(["mix", str(packed), str(tmp_path / "out"), "--length", "1024", "--part", "0.5"])


def test_the_command_line_mixes_and_shows(packed, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["mix", str(packed), out, "--length", "2048", "--tokens", "8K", "--tasks", "facts=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 4
    assert main(["show", out, "--row", "1"]) == 0
    assert "⟦" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        main(["mix", str(packed), out + "2", "--length", "2048", "--tasks", "riddle=1"])
    assert str(caught.value).startswith("lca.data mix: there is no task riddle")


def test_ngrams_do_not_see_case_punctuation_or_place():
    text = prose(random.Random(1), 30)
    plain = ngram_hashes(text)
    assert len(plain) == 30 * 9 - 12 and len(numpy.unique(plain)) == len(plain)
    assert numpy.array_equal(plain, ngram_hashes("  " + text.upper().replace(".", " -- ")))
    assert numpy.array_equal(plain[9:], ngram_hashes(text.split(". ", 1)[1]))
    assert not numpy.isin(ngram_hashes(text[::-1]), plain).any()
    assert len(ngram_hashes("one two")) == 0 and len(word_hashes("")) == 0
    assert len(word_hashes("Über-naïve 漢字, x1!")) == 4


def test_overlap_counts_shared_ngrams_and_names_the_worst(tmp_path, capsys):
    draw = random.Random(8)
    for name in ("train", "held"):
        (tmp_path / name).mkdir()
    shared, own = prose(draw, 50), prose(draw, 150)
    (tmp_path / "train" / "a.txt").write_text(prose(draw, 100) + shared)
    (tmp_path / "train" / "b.jsonl").write_text(json.dumps({"text": prose(draw, 100)}) + "\n{broken\n")
    (tmp_path / "held" / "leaky.txt").write_text(own + shared)
    (tmp_path / "held" / "clean.txt").write_text(prose(draw, 200))
    told = overlap([tmp_path / "held"], [tmp_path / "train"])
    assert told["grams"] == 2 * (200 * 9 - 12) and told["common"] == 50 * 9 - 12
    assert [each["document"].endswith("leaky.txt") for each in told["worst"]] == [True]
    assert told["worst"][0]["first_in"].endswith("a.txt") and len(told["problems"]) == 1
    arguments = ["overlap", "--held-out", str(tmp_path / "held"), "--training", str(tmp_path / "train")]
    assert main([*arguments, "--limit", "0.5"]) == 0 and main([*arguments, "--limit", "0.001", "--json"]) == 1
    clean = [*arguments[:2], str(tmp_path / "held" / "clean.txt"), *arguments[3:], "--limit", "0"]
    assert main(clean) == 0


def test_conversations_in_the_form_of_the_template():
    form = chat_form(TOKENIZER)
    ids, said = chat_encode(TOKENIZER, form, [("user", "a"), ("assistant", "b")])
    assert TOKENIZER.decode(ids) == "<|user|>\na<|end|>\n<|assistant|>\nb<|end|>"
    assert TOKENIZER.decode(ids[said]) == "b<|end|>"
    with pytest.raises(ValueError, match="user, assistant"):
        chat_encode(TOKENIZER, form, [("assistant", "b")])


def test_the_engine_and_transformers_give_the_same_tokens(smollm2, tmp_path):
    pytest.importorskip("transformers")
    for name, content in zip(("tokenizer.json", "tokenizer_config.json"),
                             lca.export.tokenizer_of(lca.export.GgufFile(smollm2).fields)):
        (tmp_path / name).write_text(json.dumps(content))
    ours, theirs = tokenizer_open(str(smollm2)), tokenizer_open(tmp_path)
    assert type(ours).__name__ == "EngineTokenizer" and type(theirs).__name__ == "TransformersTokenizer"
    assert fingerprint(ours) == fingerprint(theirs) and ours.begin() == theirs.begin()
    assert chat_form(ours) == chat_form(theirs)
    hostile = "a text that spells <|im_end|> is still text"
    assert 2 not in ours.encode([hostile])[0] and numpy.array_equal(ours.encode([hostile])[0],
                                                                    theirs.encode([hostile])[0])
    assert ours.decode(theirs.encode([hostile])[0]) == hostile
    assert ours.special("<|im_end|>") == theirs.special("<|im_end|>") == [2]
