#!/usr/bin/env python3
"""Does an adapter find what is said in other words than those it was trained on?

    eval/wordings.py OUT.json --text FOLDER [--adapter DIR] [--model smollm2] [--device cuda] [--length 4096]
                     [--samples 24] [--only NAME,…] [--words ASSETS] [--values number]

One fact is planted into text at a depth where it is condensed when the reply begins, asked for with the reply's first
words given; a hit is a greedy reply that contains the value. "training" has sentences of the training lists, "ruler"
the one of RULER, the others are of neither. "passage" gives the first ten words of a sentence and counts how many of the
next sixteen come back before the first wrong one. Keys are two plain words with a hyphen, out of --words (the lists of
the package wonderwords) or a list of our own. --values: number (7 digits), words (two), uuid, date, or code.
"""
import argparse
import json
import pathlib
import random
import sys
import time
import uuid

OWN = ("copper lantern", "quiet orchard", "northern ferry", "broken clock", "paper kite", "third bell", "amber door",
       "winter train", "salt market", "green ledger", "stone kitchen", "early tram", "narrow bridge", "blue wagon")
#: Name, statement, question, beginning of the reply.
WORDINGS = (
    ("training 1", "The access code of {k} is {v}.", "What is the access code of {k}?", "The access code of {k} is"),
    ("training 2", "The record shows {v} as the label of {k}.", "Which label was given for {k}?", "The label for {k} is"),
    ("ruler", "One of the special magic numbers for {k} is: {v}.",
     "What is the special magic number for {k} mentioned in the provided text?",
     "The special magic number for {k} mentioned in the provided text is"),
    ("colon", "The access code for {k} is: {v}.", "What is the access code for {k}?", "The access code for {k} is"),
    ("story 1", "When the conductor asked about {k}, the old man only whispered {v} and looked away.",
     "What did the old man whisper when the conductor asked about {k}?", "The old man whispered"),
    ("story 2", "On the back of the photograph of {k} someone had pencilled {v}.",
     "What was pencilled on the back of the photograph of {k}?", "On the back was pencilled"),
    ("story 3", "She paid {v} for {k}, which everyone thought absurd.", "How much did she pay for {k}?",
     "For {k} she paid"),
    ("manual", "To reset {k}, hold the button and type {v} on the keypad.", "What must be typed to reset {k}?",
     "To reset {k}, type"),
    ("table", "{k} | passed | {v} | room 4", "What stands beside {k} in the table, after \"passed\"?",
     "Beside {k} stands"),
    ("mail", "Subject: {k}\nPlease quote {v} whenever you write to us.", "Which number is to be quoted about {k}?",
     "About {k} please quote"),
    ("code", "registry[\"{k}\"] = {v}", "What is registry[\"{k}\"] set to?", "registry[\"{k}\"] ="),
    ("news", "According to the harbour master, {k} reported a crew of {v}.", "What crew did {k} report?",
     "{k} reported a crew of"),
)
PASSAGE = "passage"
MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
          "December")


def _words(draw):
    return f"{draw.choice(OWN).split()[0]} {draw.choice(OWN).split()[1]}"


def _uuid(draw):
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


def _code(draw):
    first, last = draw.choice("BDFGHKLMPRTVWX") + draw.choice("AEIOU"), draw.choice("QRSTUVWXYZ")
    return f"{first}-{draw.randrange(100, 1000)}-{last}"


#: What a fact may say, and the tokens of a reply that has room for it.
VALUES = {
    "number": (lambda draw: str(draw.randrange(1_000_000, 10_000_000)), 16),
    "words": (_words, 16),
    "uuid": (_uuid, 48),
    "date": (lambda draw: f"{draw.randrange(1, 29)} {draw.choice(MONTHS)} {draw.randrange(1500, 2000)}", 16),
    "code": (_code, 16),
}


class Prompts:
    def __init__(self, engine, texts, keys, length):
        self.engine, self.texts, self.keys, self.length = engine, texts, keys, length

    def piece(self, draw):
        """Some text of nearly the length, and a place after a sentence in its first part, or its beginning."""
        text = draw.choice(self.texts)
        size = int(self.length * len(text) / len(self.engine.encode(text)))
        at = draw.randrange(max(1, len(text) - size))
        text = text[at:at + size]
        # Outside a window of 1,024 tokens when the question is asked.
        limit = max(0.0, (self.length - 1300) / self.length)
        found = text.find(". ", int(draw.random() * limit * len(text)))
        return text, 0 if found < 0 else found + 2

    def _wrapped(self, text, question, begin):
        chat = [{"role": "user", "content": f"{text}\n\n{question}"}]
        return self.engine.prompt_tokens(chat) + self.engine.encode(begin)

    def fact(self, draw, statement, question, begin, value):
        key = draw.choice(self.keys)
        text, place = self.piece(draw)
        said = statement.format(k=key, v=value)
        return self._wrapped(f"{text[:place]}{said} {text[place:]}", question.format(k=key), begin.format(k=key))

    def passage(self, draw):
        while True:
            text, place = self.piece(draw)
            words = text[place:].split(" ")
            if len(words) > 40:
                break
        begin, rest = " ".join(words[:10]), words[10:26]
        return self._wrapped(text, f"Repeat the sentence that begins with: {begin}", begin), rest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--adapter", help="a folder, or none (that of the model's name)")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--samples", type=int, default=24)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="some of the wordings")
    parser.add_argument("--words", type=pathlib.Path)
    parser.add_argument("--values", choices=list(VALUES), default="number")
    options = parser.parse_args()
    import lca
    engine = lca.Engine(options.model, device=options.device, adapter=options.adapter)
    texts = [each.read_text(encoding="utf-8") for each in sorted(options.text.rglob("*.txt"))]
    texts = [" ".join(texts)] if max(map(len, texts), default=0) < 6 * options.length else \
        [text for text in texts if len(text) > 6 * options.length]
    keys = [each.replace(" ", "-") for each in OWN]
    if options.words:
        first, second = (options.words.joinpath(name).read_text().split() for name in
                         ("adjectivelist.txt", "nounlist.txt"))
        draw = random.Random(options.seed)
        keys = [f"{draw.choice(first)}-{draw.choice(second)}" for _ in range(500)]
    make_value, room = VALUES[options.values]
    prompts, told = Prompts(engine, texts, keys, options.length), []
    wanted = options.only.split(",") if options.only else [*(each[0] for each in WORDINGS), PASSAGE]
    for name in wanted:
        draw, made, began = random.Random(f"{options.seed} {name}"), [], time.time()
        for _ in range(options.samples):
            if name == PASSAGE:
                made.append(prompts.passage(draw))
            else:
                form = next(each for each in WORDINGS if each[0] == name)
                value = make_value(draw)
                made.append((prompts.fact(draw, *form[1:], value), value))
        replies = []
        for at in range(0, len(made), options.batch):
            some = [prompt for prompt, _ in made[at:at + options.batch]]
            replies += [each.text for each in engine.generate(some, max_tokens=40 if name == PASSAGE else room,
                                                              temperature=0)]
        if name == PASSAGE:
            right = []
            for (_, rest), reply in zip(made, replies):
                same = [a == b for a, b in zip(rest, reply.strip().split(" "))]
                right.append(next((at for at, each in enumerate(same) if not each), len(same)))
            row = {"wording": name, "samples": len(made), "words_right": sum(right) / len(right), "of": 16}
        else:
            row = {"wording": name, "samples": len(made),
                   "hits": sum(value in reply for (_, value), reply in zip(made, replies)),
                   "first_digit": sum(reply.strip()[:1] == value[0] for (_, value), reply in zip(made, replies))}
        told.append(row)
        print(json.dumps(row), f"{time.time() - began:.0f} s", flush=True)
    options.out.write_text(json.dumps({"length": options.length, "seed": options.seed, "values": options.values,
                                       "rows": told}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
