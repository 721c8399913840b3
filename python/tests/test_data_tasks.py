"""Planted tasks: their words are not the evaluation's, and rows say exactly which tokens are answers."""

import random
import re

import numpy
import pytest
import ruler_hashes

from lca.data import ANSWER, NONE, TEXT, RowOptions, phrases, tasks, templates, words
from lca.data.rows import RowMaker
from lca.data.tokenizers import BytesTokenizer, chat_form

VALUES = {"number": 1.0, "word": 1.0, "uuid": 1.0, "other": 1.0}
TOKENIZER = BytesTokenizer()


def haystack(length=8192, seed=0):
    draw = random.Random(seed)
    sentences = (" ".join("".join(draw.choices("aeioustrln", k=draw.randint(2, 8))) for _ in range(9)) + ". "
                 for _ in range(length // 20))
    return TOKENIZER.encode(["".join(sentences)])[0][:length]


def make(name, length=4096, seed=0, **options):
    maker = RowMaker(TOKENIZER, chat_form(TOKENIZER), RowOptions(length, tasks={name: 1.0}, **options))
    return maker.row(random.Random(seed), haystack(length, seed))


def test_no_word_is_one_from_which_ruler_draws():
    theirs, _ = ruler_hashes.known()
    assert len(theirs) > 8000 and ruler_hashes.hash_of("table") in theirs
    mine = {*words.WORDS, *words.COMMON_FIRST, *words.COMMON_SECOND, *words.ITEMS,
            *(word for form in words.PLACES for word in re.findall(r"[A-Za-z]+", form))}
    mine -= {"the", "at", "of"}
    assert len(words.WORDS) > 300
    assert not [word for word in mine if ruler_hashes.hash_of(word) in theirs]


def test_no_wording_shares_four_words_with_ruler():
    _, theirs = ruler_hashes.known()
    assert ruler_hashes.hash_of("one of the special") in theirs
    assert ruler_hashes.hash_of("memorize and track the") in theirs
    written = templates.wordings() + phrases.parts()
    for seed in range(1500):
        draw = random.Random(seed)
        names = [name for name in tasks.TASKS if name not in ("passage", "recite")]  # those are of the text
        task = tasks.Maker(draw, 24, VALUES).make(draw.choice(names))
        written += [plant.text for plant in task.plants]
        written += [text for turn in task.turns for text in (turn.question, turn.reply)]
    assert not [(text, phrase) for text in written for phrase in ruler_hashes.phrases(text)
                if ruler_hashes.hash_of(phrase) in theirs]
    for word in ("magic", "memorize", "quiz", "VAR "):
        assert not [text for text in written if word in text]


def test_wordings_that_are_put_together_are_many_and_whole():
    draw = random.Random(1)
    for make_one, least in ((phrases.statement, 4000), (phrases.statement_more, 2000), (phrases.question, 1000),
                            (phrases.reply, 400)):
        made = {make_one(draw) for _ in range(5000)}
        assert len(made) >= least
        for each in made:
            text, places = tasks.fill(each, r="shelf mark", rs="shelf marks", k="Kelinthorpe", v="4471093")
            assert not re.search(r"\{(of|is|where|which|q|r|rs|k|v)\}", text), text
            assert make_one is phrases.question or [text[a:b] for a, b in places["v"]] == ["4471093"]


def test_wordings_are_grammatical_where_parts_meet():
    draw = random.Random(3)
    commands = "|".join(way for way, _ in phrases.MEANS)
    for _ in range(4000):
        said, asked, told = phrases.event(draw)
        one, many = phrases.relation(draw)
        made = [said, asked, told, *(make_one(draw) for make_one in (phrases.statement, phrases.statement_more,
                                                                     phrases.question, phrases.reply))]
        for text in (tasks.fill(each, r=one, rs=many, k="Kelinthorpe", v="4471093")[0] for each in made):
            assert not re.search(r"\b(a|A) [aeioAEIO]|\bto to\b|  ", text), text  # a official sign, go to to open
            if text.startswith(phrases.LEADS):  # not: remember that dial …; they told us that its sign: …
                rest = text[len(next(lead for lead in phrases.LEADS if text.startswith(lead))):]
                assert not re.match(rf"({commands}) 4471093 and you|to \w+ Kelinthorpe, ({commands})", rest), text
                assert not re.search(r"(Kelinthorpe|Kelinthorpe's [\w ]+|, [\w ]+)(: | - | = | -> )4471093", rest), text


def test_events_ask_for_what_they_state():
    draw = random.Random(2)
    made = [phrases.event(draw) for _ in range(3000)]
    assert len({said for said, _, _ in made}) > 2500
    for said, asked, told in made:
        text, places = tasks.fill(said, k="Kelinthorpe", v="4471093")
        assert "Kelinthorpe" in text and [text[a:b] for a, b in places["v"]] == ["4471093"]
        question, _ = tasks.fill(asked, k="Kelinthorpe", v="4471093")
        assert "Kelinthorpe" in question and "4471093" not in question
        reply, places = tasks.fill(told, k="Kelinthorpe", v="4471093")
        assert reply.count("4471093") == 1 and not re.search(r"[{}]", text + question + reply)


def test_names_are_no_words_of_ruler_and_numbers_have_many_lengths():
    draw = random.Random(1)
    theirs, _ = ruler_hashes.known()
    names = (head + middle + tail for head in words.HEADS for middle in ["", *words.MIDDLES] for tail in words.TAILS)
    assert not [name for name in names if ruler_hashes.hash_of(name) in theirs]
    assert {len(words.number(draw)) for _ in range(300)} == set(range(3, 10))


@pytest.mark.parametrize("name", tasks.TASKS)
def test_every_task_is_made_whatever_the_row_has_room_for(name):
    for cap in (1, 2, 3, 8, 48, 97, 98, 200, 400):  # of rows of some 256 tokens to 64K
        for seed in range(5):
            task = tasks.Maker(random.Random(seed), cap, VALUES).make(name)
            assert task.name == name and (task.turns or task.passages)
            if name == "facts":
                assert min(cap, max(2, min(cap // 2, 24))) <= len(task.plants) <= min(cap, 48)


@pytest.mark.parametrize("name", tasks.TASKS)
@pytest.mark.parametrize("chat", [0.0, 1.0])
def test_a_row_has_its_length_and_marks_its_answers(name, chat):
    for seed in range(12):
        row = make(name, seed=seed, chat_share=chat)
        assert len(row.ids) == len(row.kinds) == 4096 and row.task == name and row.chat == bool(chat)
        edges = numpy.flatnonzero(numpy.diff(numpy.concatenate([[0], row.kinds == ANSWER, [0]])))
        marked = [TOKENIZER.decode(row.ids[a:b]).replace("<|end|>", "").strip()
                  for a, b in zip(edges[::2], edges[1::2])]
        assert marked == [answer.strip() for answer in row.answers]
        text = TOKENIZER.decode(row.ids)
        assert text.startswith("<|user|>") == bool(chat)
        before = TOKENIZER.decode(row.ids[:edges[0]])
        if name != "chain":
            flat = " ".join(before.split())
            assert all(" ".join(answer.split()).lower() in flat.lower() for answer in row.answers[:1])
        assert (row.kinds == TEXT).sum() >= 1024 and set(row.kinds.tolist()) == {NONE, TEXT, ANSWER}


def test_what_is_planted_has_no_loss_and_the_text_is_whole():
    for seed in range(20):
        row = make("facts", seed=seed)
        for start, end in row.plants:
            assert not row.kinds[start:end].any()
        kept = row.ids[row.kinds == TEXT]
        assert numpy.array_equal(kept, haystack(4096, seed)[:len(kept)])


def test_every_fact_asked_for_is_in_the_text_once():
    for seed in range(20):
        row = make("facts", seed=seed, first_share=0)
        planted = [TOKENIZER.decode(row.ids[a:b]) for a, b in row.plants]
        for answer in row.answers:
            assert any(answer in text for text in planted)
        assert len(row.answers) == len(planted)


def test_values_of_a_key_are_answered_in_the_order_of_the_text():
    for seed in range(20):
        row = make("values", seed=seed)
        planted = "".join(TOKENIZER.decode(row.ids[a:b]) for a, b in row.plants)
        at = 0
        for answer in row.answers:  # a short one may also stand inside an earlier one
            at = planted.find(answer, at) + len(answer)
            assert at >= len(answer), (answer, planted)


def test_a_chain_leads_from_the_value_to_each_name():
    for seed in range(30):
        task = tasks.Maker(random.Random(seed), 8, VALUES).make("chain")
        turn, texts = task.turns[0], [plant.text for plant in task.plants if plant.asked]
        depths = [plant.depth for plant in task.plants if plant.asked]
        assert depths == sorted(depths)
        value = re.search(r"\d{3,9}(?=\D*$)", texts[0])[0]
        names = [turn.reply[a:b] for a, b in turn.answers]
        assert len([text for text in (plant.text for plant in task.plants) if re.search(rf"\b{value}\b", text)]) == 1
        if names != [value]:
            assert value in turn.question and len(names) == len(texts)
            for name, text in zip(names, texts):
                assert name in text


def test_some_lists_of_facts_differ_in_keys_and_values_alone():
    alike = lists = 0
    for seed in range(200):
        task = tasks.Maker(random.Random(seed), 20, VALUES).make("distractors")
        ends = {plant.text[plant.values[0][1]:][-12:] for plant in task.plants}
        lists += len(task.plants) >= 4
        alike += len(task.plants) >= 4 and len(ends) == 1
    assert 0.25 * lists < alike < 0.6 * lists


def test_passages_are_repeated_word_for_word():
    for seed in range(20):
        row = make("passage", seed=seed)
        source = TOKENIZER.decode(row.ids[row.kinds == TEXT])
        assert all(answer in source for answer in row.answers)


def test_a_recited_passage_takes_what_the_row_has_room_for():
    lengths = [int((make("recite", 4096, seed).kinds == ANSWER).sum()) for seed in range(30)]
    assert min(lengths) > 30 and max(lengths) > 400
    row = make("recite", 1024, 3)
    assert len(row.answers) == 1 and row.answers[0] in TOKENIZER.decode(row.ids[row.kinds == TEXT])


def test_a_border_of_groups_lies_inside_the_value():
    inside = total = 0
    for seed in range(60):
        row = make("border", seed=seed, groups=(16, 32), sink=4)
        for first, last, group in row.straddled:
            total += 1
            inside += (first - 4) // group != (last - 4) // group
    assert total > 60 and inside >= 0.95 * total


def test_depths_are_uniform():
    depths = [depth for seed in range(150) for depth in make("distractors", 2048, seed).depths]
    counts, _ = numpy.histogram(depths, 5, (0, 1))
    assert counts.min() > 0.5 * len(depths) / 5


def test_shares_of_chat_and_of_questions_before_the_text_are_met():
    rows = [make("fact", 2048, seed, chat_share=0.5, first_share=0.25) for seed in range(200)]
    assert 0.4 < numpy.mean([row.chat for row in rows]) < 0.6
    assert 0.15 < numpy.mean([row.first for row in rows]) < 0.35
    first = next(row for row in rows if row.first)
    assert TOKENIZER.decode(first.ids).index("?") < first.plants[0][0] or first.plants[0][0] > 40


def test_the_end_of_a_reply_counts_where_the_answer_is_all_of_it():
    ends = {True: set(), False: set()}
    for seed in range(60):
        row = make("fact", 2048, seed, chat_share=1.0)
        said = TOKENIZER.decode(row.ids).split("<|assistant|>\n")[1].removesuffix("<|end|>")
        ends[said == row.answers[0]].add(int(row.kinds[-1]))
    assert ends == {True: {ANSWER}, False: {NONE}}
    assert {int(make("passage", 4096, seed, chat_share=1.0).kinds[-1]) for seed in range(10)} == {NONE}


def test_density_is_how_much_of_a_row_is_asked_for():
    answers = [sum(len(make("facts", 4096, seed, density=density).answers) for seed in range(40))
               for density in (0.2, 0.35, 0.7)]
    assert answers[0] < answers[1] and answers[2] > 1.6 * answers[1]


def test_wrong_options_are_one_line():
    for options, words_of_it in ((dict(tasks={"riddle": 1.0}), "there is no task riddle"),
                                 (dict(values={"number": 0.0}), "no kind of value has a weight"),
                                 (dict(chat_share=2.0), "between 0 and 1"), (dict(groups=(1,)), "at least 2"),
                                 (dict(tasks={"fact": -1.0}), "negative"), (dict(density=0.8), "density")):
        with pytest.raises(ValueError, match=words_of_it) as caught:
            RowOptions(4096, **options).check()
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="too short for task passage"):
        make("passage", 256)
