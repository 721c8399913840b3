"""Wordings that are put together from parts: statements, questions and replies of tens of thousands of forms.

A model that sees a few dozen sentences over and over learns those; one that never meets the same sentence twice learns
to keep whatever is said of something. Results are templates: {r} the relation, {rs} its plural, {k} the key, {v} the
value. No four words in a row are RULER's (python/tests/test_data_tasks.py).
"""

from __future__ import annotations

import random

KINDS = ("hidden", "private", "current", "official", "assigned", "final", "temporary", "internal", "agreed", "usual",
         "second", "older", "new", "printed", "spoken", "written", "recorded", "local", "foreign", "emergency", "daily",
         "winter", "public", "sealed", "spare", "true", "former", "given", "personal", "provisional", "confirmed", "test",
         "master", "group", "field", "night", "harbour", "office", "customs", "service", "union", "school", "station")
THINGS = (("number", "numbers"), ("code", "codes"), ("word", "words"), ("figure", "figures"), ("entry", "entries"),
          ("value", "values"), ("identifier", "identifiers"), ("name", "names"),
          ("mark", "marks"), ("sign", "signs"), ("phrase", "phrases"), ("reference", "references"), ("key", "keys"),
          ("note", "notes"), ("address", "addresses"), ("line", "lines"), ("count", "counts"), ("total", "totals"),
          ("sum", "sums"), ("date", "dates"), ("result", "results"), ("record", "records"), ("symbol", "symbols"),
          ("string", "strings"), ("setting", "settings"), ("signal", "signals"), ("title", "titles"),
          ("combination", "combinations"), ("formula", "formulas"), ("quantity", "quantities"), ("message", "messages"),
          ("index", "indexes"), ("designation", "designations"), ("marker", "markers"), ("alias", "aliases"),
          ("measurement", "measurements"), ("reply", "replies"), ("item", "items"), ("detail", "details"))

#: Before anything.
OPENERS = ("", "", "", "", "For the record: ", "Note: ", "Fact: ", "N.B. ", "(Aside) ", "Keep in mind: ",
           "A slip of paper said: ", "The notice read: ", "From the files: ", "Do not forget: ", "One more thing: ",
           "- ", "* ", "Here is what matters: ", "Update: ", "P.S. ")
#: Before a clause with a verb that is no command.
LEADS = ("By the way, ", "Remember that ", "It is known that ", "As everybody agreed, ", "Somebody added that ",
         "At this point it should be said that ", "They told us that ", "It says here that ", "To be precise, ",
         "In short, ", "Incidentally, ", "As far as we know, ", "Later it was learned that ", "Let it be stated that ",
         "He wrote in his diary that ", "The caption says ")
OF = ("of", "of", "of", "for", "for", "for", "belonging to", "attached to", "kept for", "assigned to", "linked with",
      "reserved for", "held by", "given to", "connected with", "listed for", "that goes with", "registered for",
      "concerning", "noted beside")
IS = (" is ", " is ", " is: ", " was ", " reads ", " reads: ", " equals ", " has been fixed as ", " turned out to be ",
      " is known, namely ", " is given as ", " must be ", " stays ", " became ", " is now ", " is the following: ",
      " happens to be ", " is on file as ", " is set to ", " is recorded as ", " is \"{q}\"")
IS_KEY = (" has the {r} {v}", " has {v} as its {r}", " comes with the {r} {v}", " carries the {r} {v}",
          " uses {v} as its {r}", " is filed under the {r} {v}", " got the {r} {v}", "'s {r} is {v}",
          " shows {v} for its {r}", " is known by its {r}, {v}", " keeps {v} for its {r}", " answers to the {r} {v}",
          " received {v} as its {r}")
VALUE_FIRST = ("{v} is the {r} {of} {k}", "{v} serves as the {r} {of} {k}", "{v} was chosen as the {r} {of} {k}",
               "the value {v} is the {r} {of} {k}", "{v} remains the {r} {of} {k}",
               "they settled on {v} for the {r} {of} {k}", "you will find {v} given as the {r} {of} {k}",
               "{v} stands as the {r} {of} {k}")
#: Without a verb.
NOTES = ("the {r} {of} {k}: {v}", "the {r} {of} {k} = {v}", "the {r} {of} {k} - {v}", "the {r} {of} {k} -> {v}",
         "{k}, {r}: {v}", "{k} ({r} {v})", "{k}'s {r}: {v}", "{k} - {r}: {v}", "{v}: that is the {r} {of} {k}")
BRACKETS = ("[{r} {of} {k} = {v}]", "<{k}> {r}: {v}", "{k} / {r} / {v}", "({k}; {r}; {v})", "{r}[{k}] = {v}",
            "{k}\t{r}\t{v}", "# {k}: {r} {v}", "{{{k}: {v}}} ({r})", "| {k} | {r} | {v} |", "{r} ({k}): {v}",
            "** {r}, {k}: {v} **", "{k} => {v} [{r}]", "set the {r} {of} {k} to {v}")
CLOSERS = (".", ".", ".", ".", ".", "", "!", ";", ", they say.", ", as far as anyone knows.", ", to be exact.",
           ". Keep that in mind.", ", according to the list.", ". That is all.", " (checked twice).", ", for certain.",
           ", it seems.", ", it is said.")
MORE = ("another {r} {of} {k}{is}{v}", "a further {r} {of} {k}{is}{v}", "{k} also has the {r} {v}",
        "{v} is one more {r} {of} {k}", "among the {rs} {of} {k} there is {v}", "one {r} {of} {k}{is}{v}",
        "{k} has {v} among its {rs}", "one of the {rs} {of} {k}{is}{v}")
MORE_NOTES = ("another {r} {of} {k}: {v}", "a further {r} {of} {k} - {v}", "{k}, next {r}: {v}", "{k}, one {r}: {v}")

ASKS = ("What is the {r} {of} {k}{which}?", "Which {r} is the one {of} {k}{where}?", "Tell me the {r} {of} {k}{which}.",
        "Do you recall the {r} {of} {k}{which}?", "Please give the {r} {of} {k}{which}.",
        "{k}: what is its {r}{where}?", "What was said to be the {r} {of} {k}{where}?", "And the {r} {of} {k}?",
        "Find the {r} {of} {k}{which}.", "I would like to know the {r} {of} {k}{which}.",
        "Can you repeat the {r} {of} {k}{which}?", "Name the {r} {of} {k}{which}.", "How does the {r} {of} {k} read?",
        "Now the {r} {of} {k}, please.", "Somewhere the {r} {of} {k} was named. What was it?",
        "Which {r} goes with {k}{where}?", "{k} - {r}?", "Which {r} {of} {k} did you see?",
        "State the {r} {of} {k} exactly.", "Give me the {r} {of} {k}{which}.")
WHERE = ("", "", "", " in the text", " in the pages above", " according to the document", " as stated above",
         " from what you have read", " in what came before", " as written there", " in this document",
         " from the passage above")
#: As WHERE, after what is asked for.
WHICH = (*WHERE, " that the text gives", " that was named earlier")
TELLS = ("The {r} {of} {k}{which}{is}{v}.", "The {r} {of} {k}{is}{v}.", "{k}: {v}", "{r}: {v}", "{v}", "{v}.",
         "It is {v}.", "It was {v}.", "The answer is {v}.", "Answer: {v}", "{k} has the {r} {v}.", "That is {v}.",
         "The text gives {v}.", "{v} is the {r} {of} {k}.", "You find it above: {v}", "The {r} you ask for is {v}.",
         "The {r}{is}{v}.", "As stated, it is {v}.", "Its {r} is {v}.", "For {k} the text has {v}.")

#: Verbs whose object is a value: as in "did … count", "counted", "was counted".
VERBS = (("count", "counted", "counted"), ("shout", "shouted", "shouted"), ("write down", "wrote down", "written down"),
         ("order", "ordered", "ordered"), ("find", "found", "found"), ("choose", "chose", "chosen"),
         ("send", "sent", "sent"), ("dial", "dialled", "dialled"), ("win", "won", "won"), ("lose", "lost", "lost"),
         ("bid", "bid", "bid"), ("read out", "read out", "read out"), ("draw", "drew", "drawn"),
         ("paint", "painted", "painted"), ("guess", "guessed", "guessed"), ("measure", "measured", "measured"),
         ("note", "noted", "noted"), ("receive", "received", "received"), ("demand", "demanded", "demanded"),
         ("offer", "offered", "offered"), ("spell", "spelled", "spelled"), ("mention", "mentioned", "mentioned"),
         ("carve", "carved", "carved"), ("remember", "remembered", "remembered"), ("sell", "sold", "sold"),
         ("mutter", "muttered", "muttered"), ("keep", "kept", "kept"), ("add", "added", "added"),
         ("scratch", "scratched", "scratched"), ("enter", "entered", "entered"), ("collect", "collected", "collected"),
         ("point to", "pointed to", "pointed to"), ("sign", "signed", "signed"),
         ("repeat", "repeated", "repeated"), ("hide", "hid", "hidden"), ("announce", "announced", "announced"))
PEOPLE = ("porter", "teacher", "captain", "neighbour", "gardener", "nurse", "judge", "baker", "stranger", "doctor",
          "librarian", "driver", "widow", "sergeant", "painter", "guard", "child", "merchant", "secretary", "monk",
          "engineer", "aunt", "farmer", "pilot", "waiter", "editor", "clerk", "sailor", "owner", "guide")
MOMENTS = ("in the evening", "at the gate", "before leaving", "on the third day", "without a word", "by the river",
           "after the meal", "in a low voice", "at dawn", "on the stairs", "in front of everyone", "twice",
           "under the old bridge", "during the storm", "at the very end", "behind the house", "in spring", "once more",
           "on the way home", "near the station", "with some doubt", "last Tuesday", "in the margin", "for a friend")
PLACES = ("door", "lid", "cover", "map", "wall", "ticket", "label", "first page", "envelope", "badge", "plate", "box",
          "receipt", "handle", "frame", "ribbon", "roof", "blade", "screen", "sleeve")
MARKED = ("written", "painted", "carved", "scratched", "printed", "drawn", "stamped", "engraved", "noted", "stitched")
DEEDS = (("open", "opened"), ("start", "started"), ("find", "found"), ("enter", "entered"), ("call", "called"),
         ("unlock", "unlocked"), ("repair", "repaired"), ("reach", "reached"), ("book", "booked"), ("check", "checked"),
         ("order", "ordered"), ("stop", "stopped"))
MEANS = (("dial", "dialled"), ("turn the wheel to", "turned the wheel to"), ("ask for", "asked for"), ("enter", "entered"),
         ("say", "said"), ("press", "pressed"), ("set the clock to", "set the clock to"), ("name", "named"),
         ("write", "wrote"), ("choose", "chose"), ("go to", "went to"), ("show", "showed"))


def relation(draw: random.Random) -> tuple[str, str]:
    """What is said of a key, and its plural."""
    one, many = draw.choice(THINGS)
    kind = draw.choice(KINDS) + " " if draw.random() < 0.75 else ""
    return kind + one, kind + many


def _filled(draw: random.Random, template: str, **parts: str) -> str:
    """The parts put into a template whose other fields stay."""
    template = template.replace("{of}", draw.choice(OF))
    for name, text in parts.items():
        template = template.replace("{" + name + "}", text)
    return template


def _joined(draw: random.Random, template: str) -> str:
    """A template whose {is}{v} is a link and the value; a quoted value ends with its quote."""
    link = draw.choice(IS)
    return template.replace("{is}{v}", link.replace("{q}", "{v}") if "{q}" in link else link + "{v}")


def _said(draw: random.Random, body: str, clause: bool = True) -> str:
    """A body between an opener and a closer; `clause`: it may stand after "that"."""
    opener = draw.choice(OPENERS + LEADS if clause else OPENERS)
    if opener in OPENERS and body[0].isalpha():
        body = body[0].upper() + body[1:]
    return opener + body + draw.choice(CLOSERS)


def statement(draw: random.Random) -> str:
    """Says a value of a key."""
    form = draw.random()
    if form < 0.12:
        return _filled(draw, draw.choice(BRACKETS))
    if form < 0.3:
        return _filled(draw, _said(draw, draw.choice(NOTES), clause=False))
    if form < 0.38:
        return statement_more(draw)  # one of several, of which the text has no other
    if form < 0.6:
        body = _joined(draw, "the {r} {of} {k}{is}{v}")
    elif form < 0.8:
        body = "{k}" + draw.choice(IS_KEY)
    else:
        body = draw.choice(VALUE_FIRST)
    return _filled(draw, _said(draw, body))


def statement_more(draw: random.Random) -> str:
    """Says one of several values of a key."""
    clause = draw.random() < 0.75
    body = _joined(draw, draw.choice(MORE)) if clause else draw.choice(MORE_NOTES)
    return _filled(draw, _said(draw, body, clause))


def question(draw: random.Random) -> str:
    """Asks for the value of a key."""
    return _filled(draw, draw.choice(ASKS), where=draw.choice(WHERE), which=draw.choice(WHICH))


def reply(draw: random.Random) -> str:
    """Answers with the value."""
    return _filled(draw, _joined(draw, draw.choice(TELLS)), which=draw.choice(WHICH))


def event(draw: random.Random) -> tuple[str, str, str]:
    """Says a value of a key by something that happened: a statement, its question and its reply."""
    base, past, done = draw.choice(VERBS)
    moment, person, place = draw.choice(MOMENTS), draw.choice(PEOPLE), draw.choice(PLACES)
    form, clause = draw.randrange(6), True
    if form == 0:
        body = draw.choice((f"{{k}} {past} {{v}} {moment}", f"{moment}, {{k}} {past} {{v}}", f"{{k}} {past} {{v}}"))
        asked, told = f"What did {{k}} {base}?", f"{{k}} {past} {{v}}"
    elif form == 1:
        body, asked = draw.choice((
            (f"asked about {{k}}, the {person} {past} {{v}}", f"What did the {person}, asked about {{k}}, {base}?"),
            (f"as for {{k}}, the {person} {past} {{v}}", f"As for {{k}}, what did the {person} {base}?"),
            (f"the {person} {past} {{v}} for {{k}} {moment}", f"What did the {person} {base} for {{k}}?"),
            (f"thinking of {{k}}, the {person} {past} {{v}}", f"Thinking of {{k}}, what did the {person} {base}?")))
        told = f"The {person} {past} {{v}}"
    elif form == 2:
        body = draw.choice((f"on the {place} of {{k}} stood {{v}}", f"the {place} of {{k}} said {{v}}",
                            f"{{v}} was {draw.choice(MARKED)} on the {place} of {{k}}",
                            f"one could read {{v}} on the {place} of {{k}}"))
        asked, told = f"What was on the {place} of {{k}}?", f"On the {place} of {{k}} was {{v}}"
    elif form == 3:
        (deed, deeds), (way, ways) = draw.choice(DEEDS), draw.choice(MEANS)
        body, clause = draw.choice((
            (f"to {deed} {{k}}, {way} {{v}}", False), (f"{way} {{v}} and you can {deed} {{k}}", False),
            (f"whoever {deeds} {{k}} first {ways} {{v}}", True), (f"they {deeds} {{k}} when they {ways} {{v}}", True)))
        asked, told = f"To {deed} {{k}}, what does one {way}?", f"To {deed} {{k}}, one has to {way} {{v}}"
    elif form == 4:
        body = draw.choice((f"{{v}} was {done} by {{k}} {moment}", f"{{v}}, {done} by {{k}}, was soon forgotten",
                            f"it was {{v}} that {{k}} {past}"))
        asked, told = f"What was {done} by {{k}}?", f"{{v}} was {done} by {{k}}"
    else:
        body, asked, told = draw.choice((
            (f"between {{k}} and the {person} it was always {{v}}",
             f"What was it always between {{k}} and the {person}?", "It was always {v}"),
            (f"{{k}} cost the {person} {{v}}", f"What did {{k}} cost the {person}?", f"{{k}} cost the {person} {{v}}"),
            (f"the {person} knew {{k}} by {{v}}", f"By what did the {person} know {{k}}?",
             f"The {person} knew {{k}} by {{v}}"),
            ("where {k} was, there was {v}", "What was there where {k} was?", "Where {k} was, there was {v}")))
    told = draw.choice((told, told, told, "{v}", "It was {v}"))
    return _said(draw, body, clause), asked, told + draw.choice((".", ".", ""))


def parts() -> list[str]:
    """Every part above, for tests."""
    found = [*KINDS, *(word for some in (THINGS, VERBS, DEEDS, MEANS) for words in some for word in words)]
    for value in (OPENERS, LEADS, OF, IS, IS_KEY, VALUE_FIRST, NOTES, BRACKETS, CLOSERS, MORE, MORE_NOTES, ASKS, WHICH,
                  TELLS, PEOPLE, MOMENTS, PLACES, MARKED):
        found.extend(value)
    return found
