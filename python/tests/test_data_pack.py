"""Packing: shares, lengths, order, hostile input, and what a kill leaves behind."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy
import pytest

from lca.data import NONE, TEXT, Packed, PackOptions, Source, pack, source_parse, store, store_check, texts
from lca.data.__main__ import main
from lca.data.packing import PRESETS
from lca.data.progress import Progress
from lca.data.texts import headers_strip
from lca.data.tokenizers import BytesTokenizer

TOKENIZER = BytesTokenizer()


def prose(draw, size):
    words = []
    while size > 0:
        words.append("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(3, 9))))
        size -= len(words[-1]) + 1
    return " ".join(words) + "\n"


@pytest.fixture
def corpus(tmp_path):
    """Two sources: 30 text files and 60 JSON lines, of 200 to 6,000 characters."""
    draw, folder = random.Random(3), tmp_path / "corpus"
    (folder / "books").mkdir(parents=True)
    for number in range(30):
        (folder / "books" / f"{number:02d}.txt").write_text(prose(draw, draw.choice((200, 800, 6000))))
    with open(folder / "web.jsonl", "w") as file:
        for _ in range(60):
            file.write(json.dumps({"text": prose(draw, draw.choice((200, 800, 6000)))}) + "\n")
    return [Source("books", str(folder / "books")), Source("web", str(folder / "web.jsonl"))]


def options(**changes):
    return PackOptions(**{"threshold": 1000, "chars_per_token": 1.0, "shard_tokens": 5000, **changes})


def hashes(folder):
    return [file["sha256"] for shard in store.manifest_read(folder)["shards"] for file in shard["files"].values()]


def test_without_the_rule_every_token_is_packed_once(corpus, tmp_path):
    told = pack(corpus, tmp_path / "out", TOKENIZER, options(keep=1.0, tokens="all"))
    packed = Packed(tmp_path / "out")
    ids, kinds, records = packed.slice(0, packed.tokens)
    found, bounds = {}, [*records["start"], len(ids)]
    for a, b, record in zip(bounds, bounds[1:], records):
        key = (int(record["file"]), int(record["record"]))
        assert record["skip"] == len(found.get(key, b""))  # pieces of a document come in order
        found[key] = found.get(key, b"") + bytes(ids[a:b].tolist())
    wanted = [path.read_bytes() for path in sorted(pathlib.Path(corpus[0].path).iterdir())]
    wanted += [json.loads(line)["text"].encode() for line in open(corpus[1].path)]
    assert sorted(found.values()) == sorted(wanted) and told["tokens"] == sum(map(len, wanted))
    assert (kinds == TEXT).all() and len(packed.manifest["shards"]) > 10 and not store_check(tmp_path / "out")


def test_shares_are_met_within_one_percent_and_all_along(corpus, tmp_path):
    told = pack(corpus, tmp_path / "out", TOKENIZER,
                options(tokens=40000, shares={"books": 3.0, "web": 1.0}, shard_tokens=10000))
    for each, share in zip(told["sources"], (0.75, 0.25)):
        assert abs(each["share"] - share) < 0.01 and each["tokens"] == round(40000 * share)
    packed = Packed(tmp_path / "out")
    _, _, records = packed.slice(0, 20000)  # the first half has the mixture, too
    lengths = numpy.diff([*records["start"], 20000])
    assert 0.55 < lengths[records["source"] == 0].sum() / 20000 < 0.95


def test_long_documents_have_more_of_the_tokens_than_before(corpus, tmp_path):
    told = pack(corpus, tmp_path / "out", TOKENIZER, options(keep=0.1))
    assert told["long_share"] > told["long_share_found"] + 0.03
    assert sum(each["tokens"] for each in told["lengths"]) == told["tokens"]
    page = (tmp_path / "out" / "statistics.md").read_text()
    assert "share reached" in page and "####" in page
    files = json.loads((tmp_path / "out" / "files.json").read_text())
    assert len(files) == 31 and all(len(file["sha256"]) == 64 for file in files)


def test_the_seed_alone_decides(corpus, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        pack(corpus, tmp_path / name, TOKENIZER, options(seed=seed, keep=0.5))
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b") != hashes(tmp_path / "c")


def test_sources_are_used_again_where_epochs_allow_it(corpus, tmp_path):
    told = pack(corpus, tmp_path / "out", TOKENIZER,
                options(tokens=300000, epochs=2, keep=1.0, shares={"books": 0.5, "web": 0.5}))
    books, web = told["sources"]
    assert books["tokens"] == 2 * books["characters_found"] and books["used_up"]
    assert web["tokens"] == 150000 and not web["used_up"]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", [2, 5, 9, 14, 20, 27, 33])
def test_after_a_kill_at_any_step_the_result_is_the_same(corpus, tmp_path, monkeypatch, step):
    wanted = options(keep=0.5, shard_tokens=20000, tokens=80000)
    pack(corpus, tmp_path / "whole", TOKENIZER, wanted)
    steps = iter(range(1, 1000))

    def counted(function):
        def call(*arguments, **named):
            if next(steps) == step:
                raise Killed
            return function(*arguments, **named)
        return call

    with monkeypatch.context() as patch:
        for name in ("replace", "fsync"):
            patch.setattr(os, name, counted(getattr(os, name)))
        with pytest.raises(Killed):
            pack(corpus, tmp_path / "killed", TOKENIZER, wanted)
    assert next(steps) == step + 1
    pack(corpus, tmp_path / "killed", TOKENIZER, wanted)
    assert hashes(tmp_path / "killed") == hashes(tmp_path / "whole") and not store_check(tmp_path / "killed")
    assert (tmp_path / "killed" / "statistics.md").read_text() == (tmp_path / "whole" / "statistics.md").read_text()


def test_a_killed_process_leaves_a_folder_that_goes_on(corpus, tmp_path):
    command = [sys.executable, "-m", "lca.data", "pack", str(tmp_path / "killed"), "--tokenizer", "bytes", "--source",
               f"books={corpus[0].path}", "--source", f"web={corpus[1].path}", "--keep", "1", "--tokens", "all",
               "--shard-tokens", "3K", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    limit = time.monotonic() + 60
    while not (tmp_path / "killed" / "shard-00003").exists() and time.monotonic() < limit:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    manifest = store.manifest_read(tmp_path / "killed")
    assert not manifest["complete"] and len(manifest["shards"]) >= 3
    with pytest.raises(ValueError, match="not complete"):
        Packed(tmp_path / "killed")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    whole = pack(corpus, tmp_path / "whole", TOKENIZER, PackOptions(keep=1.0, tokens="all", shard_tokens=3000))
    assert json.loads(done.stdout) == json.loads(json.dumps(whole))
    assert hashes(tmp_path / "killed") == hashes(tmp_path / "whole")


def test_a_folder_goes_on_with_its_own_settings_only(corpus, tmp_path):
    pack(corpus, tmp_path / "out", TOKENIZER, options())
    with pytest.raises(ValueError, match="was begun with keep 0.1, not 0.2"):
        pack(corpus, tmp_path / "out", TOKENIZER, options(keep=0.2))
    held = store.Store(tmp_path / "other", {}, {})
    with pytest.raises(ValueError, match="by another process"):
        pack(corpus, tmp_path / "other", TOKENIZER, options())
    held.close()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match="files of another kind"):
        pack(corpus, tmp_path / "mine", TOKENIZER, options())


def test_after_a_mistake_the_folder_can_be_used(corpus, tmp_path):
    with pytest.raises(ValueError, match="source web has no share"):
        pack(corpus, tmp_path / "out", TOKENIZER, options(shares={"books": 1.0}))
    with pytest.raises(ValueError, match="lower the threshold or raise the probability"):
        pack(corpus, tmp_path / "out", TOKENIZER, options(threshold=10 ** 6, keep=0.0))
    assert pack(corpus, tmp_path / "out", TOKENIZER, options())["tokens"] > 0


def test_a_text_that_changes_meanwhile_is_refused(corpus, tmp_path, monkeypatch):
    from lca.data import packing
    with monkeypatch.context() as patch:
        patch.setattr(packing, "_pack", lambda *_: {})
        pack(corpus, tmp_path / "out", TOKENIZER, options())
    with open(corpus[1].path, "a") as file:
        file.write("{}\n")
    with pytest.raises(ValueError, match="was changed since packing began"):
        pack(corpus, tmp_path / "out", TOKENIZER, options())


def test_damage_is_found(corpus, tmp_path):
    pack(corpus, tmp_path / "out", TOKENIZER, options())
    path = tmp_path / "out" / "shard-00000" / "ids.npy"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert store_check(tmp_path / "out") == ["shard-00000/ids.npy is not as it was written"]
    path.write_bytes(raw[:200])
    with pytest.raises(ValueError, match="ids.npy"):
        Packed(tmp_path / "out")
    (tmp_path / "out" / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        Packed(tmp_path / "out")


def test_hostile_input_is_reported_and_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "MAX_BYTES", 4000)
    folder = tmp_path / "in"
    folder.mkdir()
    good = prose(random.Random(0), 500)
    (folder / "good.txt").write_text(good)
    (folder / "binary.txt").write_bytes(b"\x7fELF\0\0\0\1" * 50)
    (folder / "latin.txt").write_bytes("naïve façade déjà vu ".encode("latin-1") * 20)
    (folder / "nearly.txt").write_bytes(prose(random.Random(1), 2000).encode() + b"\xff end\n")
    (folder / "wide.txt").write_bytes("wide".encode("utf-16"))
    (folder / "huge.txt").write_text("x" * 5000)
    (folder / "empty.txt").write_text(" \n")
    (folder / "old.jsonl.gz").write_bytes(b"\x1f\x8b")
    (folder / "gone.txt").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "pipe.txt")
    lines = [b'{"text": "a first fine line of words"}', b"{broken", b'{"text": 7}', b'["text"]', b'{"body": "x"}',
             b'{"text": "\xff"}', b'{"text": "' + b"y" * 9000 + b'"}', b"[" * 3000,
             b'{"text": "half a pair \\ud800 is no text"}', b"", b'{"text": "a last fine line of words"}']
    (folder / "lines.jsonl").write_bytes(b"\n".join(lines))
    told = pack([Source("all", str(folder))], tmp_path / "out", TOKENIZER, PackOptions(keep=1.0))
    problems = {line.split("in/", 1)[1] for line in told["problems"]["listed"]}
    assert all("\n" not in line for line in problems) and told["documents"] == 5
    for wanted in ("binary.txt: skipped: binary", "latin.txt: skipped: no UTF-8 from byte 2 on",
                   "nearly.txt: 1 places are no UTF-8", "wide.txt: skipped: UTF-16", "huge.txt: skipped: 0 MiB",
                   "empty.txt: skipped: empty", "old.jsonl.gz: skipped: compressed", "gone.txt: skipped: no regular",
                   "pipe.txt: skipped: no regular", "lines.jsonl:2: skipped: no JSON",
                   "lines.jsonl:3: skipped: no text",
                   "lines.jsonl:4: skipped: no text", "lines.jsonl:5: skipped: no text in field text",
                   "lines.jsonl:6: skipped: no UTF-8", "lines.jsonl:7: skipped: a line of more",
                   "lines.jsonl:8: skipped: no JSON"):
        assert any(line.startswith(wanted) for line in problems), wanted
    assert told["problems"]["count"] == 16


def test_names_of_files_may_be_anything_and_the_result_may_lie_among_the_texts(tmp_path, capsys):
    os.makedirs(tmp_path / "in")
    for name, text in ((b"odd\xff\nname.txt", b"some words of text"), (b"bad\xfe\n.txt", b"\0")):
        with open(os.path.join(os.fsencode(tmp_path / "in"), name), "wb") as file:
            file.write(text)
    out = str(tmp_path / "in" / "out")
    arguments = ["pack", out, "--tokenizer", "bytes", "--source", f"x={tmp_path / 'in'}", "--keep", "1"]
    assert main(arguments) == 0 and main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["tokens"] == 18 and told["problems"]["count"] == 1 and "\n" not in told["problems"]["listed"][0]


def test_duplicates_are_left_out_and_named(tmp_path):
    draw, folder = random.Random(5), tmp_path / "in"
    folder.mkdir()
    first, other = prose(draw, 3000), prose(draw, 3000)
    near = first.replace(first.split()[10], "changed", 1)
    for name, text in (("1.txt", first), ("2.txt", "  " + first.upper().replace(" ", "\n")), ("3.txt", near),
                       ("4.txt", other), ("5.txt", first[:1500] + other[:1500])):
        (folder / name).write_text(text)
    told = pack([Source("all", str(folder))], tmp_path / "out", TOKENIZER, PackOptions(keep=1.0))
    assert told["documents"] == 3 and told["duplicates"]["exact"] == 1 and told["duplicates"]["near"] == 1
    assert [(pathlib.Path(each["place"]).name, each["kind"], pathlib.Path(each["of"]).name)
            for each in told["duplicates"]["listed"]] == [("2.txt", "exact", "1.txt"), ("3.txt", "near", "1.txt")]
    kept = pack([Source("all", str(folder))], tmp_path / "kept", TOKENIZER,
                PackOptions(keep=1.0, duplicates="keep"))
    assert kept["documents"] == 5


def test_headers_of_books_are_stripped():
    book = "It was a dark night.\r\n\r\nThe end came at dawn.\r\n"
    newer = ("The Project Gutenberg eBook of X\r\n\r\n*** START OF THE PROJECT GUTENBERG EBOOK X ***\r\n\r\n"
             "Produced by Some Body and others\r\n\r\n" + book
             + "\r\n*** END OF THE PROJECT GUTENBERG EBOOK X ***\r\nlicence\r\n")
    older = ("Small print\n*** START OF THIS PROJECT GUTENBERG EBOOK LONG\nTITLE ***\n" + book
             + "\nEnd of the Project Gutenberg EBook of X\n\n*** END OF THIS PROJECT GUTENBERG EBOOK X ***\n")
    for text in (newer, older):
        assert headers_strip(text) == "It was a dark night.\n\nThe end came at dawn.\n"
    plain = "*** START of something else ***\nproduced by hand\n\nEND OF IT\n"
    assert headers_strip(plain) == plain


def test_conversations_have_a_loss_on_replies_only(tmp_path):
    path = tmp_path / "chat.jsonl"
    talk = [{"role": "user", "content": "One?"}, {"role": "assistant", "content": "Two."},
            {"role": "user", "content": "Three?"}, {"role": "assistant", "content": "Four."}]
    path.write_text(json.dumps({"messages": talk}) + "\n" + json.dumps({"messages": talk[1:]}) + "\n")
    told = pack([source_parse(f"chat={path},field=messages")], tmp_path / "out", TOKENIZER, PackOptions(keep=1.0))
    assert told["problems"]["count"] == 1
    ids, kinds, _ = Packed(tmp_path / "out").slice(0, told["tokens"])
    assert TOKENIZER.decode(ids) == ("<|user|>\nOne?<|end|>\n<|assistant|>\nTwo.<|end|>\n<|user|>\nThree?<|end|>\n"
                                     "<|assistant|>\nFour.<|end|>")
    assert TOKENIZER.decode(ids[kinds == TEXT]) == "Two.<|end|>Four.<|end|>" and set(kinds.tolist()) == {NONE, TEXT}


def test_a_conversation_may_begin_with_a_system_message(tmp_path):
    path = tmp_path / "chat.jsonl"
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "Two."}]
    path.write_text("".join(json.dumps({"messages": each}) + "\n" for each in (talk, talk[:1], [talk[1], talk[0]])))
    told = pack([source_parse(f"chat={path},field=messages")], tmp_path / "out", TOKENIZER, PackOptions(keep=1.0))
    assert told["problems"]["count"] == 2
    ids, kinds, _ = Packed(tmp_path / "out").slice(0, told["tokens"])
    assert TOKENIZER.decode(ids) == ("<|system|>\nBe brief.<|end|>\n<|user|>\nOne?<|end|>\n<|assistant|>\nTwo.<|end|>")
    assert TOKENIZER.decode(ids[kinds == TEXT]) == "Two.<|end|>"


def test_slimpajamas_mixture_and_labels_from_a_field(tmp_path):
    assert abs(sum(PRESETS["slimpajama"].values()) - 1) < 1e-6
    draw, path = random.Random(2), tmp_path / "train.jsonl"
    with open(path, "w") as file:
        for number in range(400):
            label = draw.choice(list(PRESETS["slimpajama"])[:-1])
            file.write(json.dumps({"text": prose(draw, 900), "meta": {"set": label}}) + "\n")
    told = pack([source_parse(f"mixed={path},by=meta.set")], tmp_path / "out", TOKENIZER,
                options(tokens=50000, shares="slimpajama", threshold=500))
    assert told["labels_without_text"] == ["RedPajamaStackExchange"]
    for each in told["sources"]:
        wanted = PRESETS["slimpajama"][each["label"]] / (1 - 0.03169647)
        assert abs(each["share_wanted"] - wanted) < 1e-6 and abs(each["share"] - wanted) < 0.01
    pack([Source("arxiv", str(path))], tmp_path / "alias", TOKENIZER, options(shares="slimpajama", tokens=1000))
    with pytest.raises(ValueError, match="source poems has no share"):
        pack([Source("poems", str(path))], tmp_path / "wrong", TOKENIZER, options(shares="slimpajama"))


def test_an_end_token_follows_every_document(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name * 50)
    pack([Source("x", str(tmp_path))], tmp_path / "out", TOKENIZER, PackOptions(keep=1.0, end="<|end|>"))
    ids, _, records = Packed(tmp_path / "out").slice(0, 102)
    assert ids[50] == ids[101] == 256 and records["start"].tolist() == [0, 51]


def test_the_bar_has_rate_and_time_left():
    line = Progress("packing", 60e6, "tokens", False, start=10e6).line(30e6, 10.0)
    assert line == "packing [############............]  50 %  30M of 60M tokens  2M tokens/s  0:15 left"


def test_the_command_line(corpus, tmp_path, capsys):
    arguments = ["pack", str(tmp_path / "out"), "--tokenizer", "bytes", "--source", f"books={corpus[0].path}",
                 "--threshold", "1000", "--chars-per-token", "auto", "--tokens", "20K"]
    assert main([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tokens"] == 20000 and abs(told["chars_per_token"] - 1) < 1e-9
    assert main(arguments) == 0 and "# Packed tokens" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "out")]) == 0
    assert main(["show", str(tmp_path / "out"), "--length", "40"]) == 0
    for wrong, line in ((["--keep", "2"], "keep probability"), (["--source", "books"], "a source is LABEL=PATH"),
                        (["--source", "x=/nowhere/at/all"], "does not exist"), (["--shares", "web=1"], "has no share")):
        with pytest.raises(SystemExit) as caught:
            main([*arguments[:1], str(tmp_path / "new"), *arguments[2:], *wrong])
        assert line in str(caught.value) and "\n" not in str(caught.value)
    for command in ("pack", "mix", "overlap", "show", "check"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert f"python -m lca.data {command}" in capsys.readouterr().out.split("example")[1]
