"""Joining folders of packed text: nothing is lost, a small folder is spread evenly, wrong pairs are refused."""

import json
import random

import numpy
import pytest

from lca.data import TEXT, MixOptions, Packed, PackOptions, RowOptions, Source, join, mix, pack, store, store_check
from lca.data.__main__ import main
from lca.data.tokenizers import BytesTokenizer

TOKENIZER = BytesTokenizer()


def words(draw, count):
    return " ".join("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(3, 9))) for _ in range(count))


def packed(sources, folder, **changes):
    pack(sources, folder, TOKENIZER, PackOptions(**{"keep": 1.0, "shard_tokens": 3000, "tokens": "all", **changes}))
    return folder


@pytest.fixture
def folders(tmp_path):
    """20 books of some 1,000 tokens, several cut by shards, and 40 conversations of some 100."""
    draw, books, chat = random.Random(5), tmp_path / "books", tmp_path / "chat.jsonl"
    books.mkdir()
    for number in range(20):
        (books / f"{number:02d}.txt").write_text(words(draw, draw.randint(100, 200)))
    chat.write_text("".join(json.dumps({"messages": [{"role": "user", "content": words(draw, 4)},
                                                     {"role": "assistant", "content": words(draw, 8)}]}) + "\n"
                            for _ in range(40)))
    return [packed([Source("books", str(books))], tmp_path / "packed-books"),
            packed([Source("chat", str(chat), "messages")], tmp_path / "packed-chat")]


def documents(folder):
    """[label, ids, kinds] of every document, pieces put together."""
    data = Packed(folder)
    ids, kinds, records = data.slice(0, data.tokens)
    found = []
    for a, b, record in zip(records["start"], [*records["start"][1:], len(ids)], records):
        piece = [data.sources[record["source"]], ids[a:b].tolist(), kinds[a:b].tolist()]
        if record["skip"]:
            assert found[-1][0] == piece[0] and record["skip"] == len(found[-1][1])
            found[-1][1] += piece[1]
            found[-1][2] += piece[2]
        else:
            found.append(piece)
    return found


def test_all_documents_are_there_once_in_their_order(folders, tmp_path):
    told = join(folders, tmp_path / "out", shard_tokens=2500)
    assert told["tokens"] == sum(Packed(each).tokens for each in folders) and not store_check(tmp_path / "out")
    joined = documents(tmp_path / "out")
    for folder, label in zip(folders, ("books", "chat")):
        assert [each for each in joined if each[0] == label] == documents(folder)
    assert len(joined) == 60 and any(TEXT not in each[2][:5] for each in joined)
    assert Packed(tmp_path / "out").manifest["chat_sources"] == ["chat"]


def test_a_small_folder_is_spread_evenly(folders, tmp_path):
    join(folders, tmp_path / "out")
    data = Packed(tmp_path / "out")
    records = data.records()
    sizes = numpy.diff([*records["start"], data.tokens])
    is_chat = records["source"] == data.sources.index("chat")
    reached = numpy.cumsum(sizes * is_chat) / (sizes * is_chat).sum()
    along = numpy.cumsum(sizes) / data.tokens
    assert numpy.abs(reached - along).max() < 0.1
    rows = RowOptions(length=512, tasks={"fact": 1.0})
    told = mix(tmp_path / "out", tmp_path / "mixed", MixOptions(rows, count=20, task_share=0.5), TOKENIZER)
    assert told["task_rows"] == 10


def test_an_interrupted_join_goes_on_and_gives_the_same_bytes(folders, tmp_path, monkeypatch):
    join(folders, tmp_path / "whole", shard_tokens=2500)
    add, count = store.Store.shard_add, []

    def stopping(self, *args):
        count.append(1)
        if len(count) == 4:
            raise KeyboardInterrupt
        add(self, *args)

    monkeypatch.setattr(store.Store, "shard_add", stopping)
    with pytest.raises(KeyboardInterrupt):
        join(folders, tmp_path / "cut", shard_tokens=2500)
    assert len(store.manifest_read(tmp_path / "cut")["shards"]) == 3
    join(folders, tmp_path / "cut", shard_tokens=2500)
    assert Packed(tmp_path / "cut").fingerprint == Packed(tmp_path / "whole").fingerprint


def test_folders_that_do_not_fit_are_refused(folders, tmp_path):
    text = tmp_path / "more.txt"
    text.write_text("one two three four five six seven")
    ends = packed([Source("more", str(text))], tmp_path / "ends", end="<|end|>")
    clash = packed([Source("chat", str(text))], tmp_path / "clash")
    loose = packed([Source("more", str(text))], tmp_path / "loose", mask_documents=False)
    mix(folders[0], tmp_path / "mixed", MixOptions(RowOptions(length=256, tasks={"fact": 1.0}), count=4), TOKENIZER)
    for other, why in ((ends, "end documents differently"), (clash, "is chat in one folder"), (loose, "mask_documents"),
                       (tmp_path / "mixed", "planted tasks")):
        with pytest.raises(ValueError, match=why):
            join([folders[1], other], tmp_path / "out")
    with pytest.raises(ValueError, match="two folders"):
        join(folders[:1], tmp_path / "out")


def test_the_command_joins_and_says_what_it_did(folders, tmp_path, capsys):
    assert main(["join", str(tmp_path / "out"), *map(str, folders)]) == 0
    assert "packed-chat" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "out")]) == 0
