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

OPENERS = ("", "", "", "", "By the way, ", "For the record: ", "Remember that ", "Note: ", "It is known that ",
           "As everybody agreed, ", "Somebody added that ", "At this point it should be said that ", "Fact: ", "N.B. ",
           "(Aside) ", "They told us that ", "It says here that ", "Keep in mind: ", "To be precise, ", "In short, ",
           "A slip of paper said: ", "The notice read: ", "From the files: ", "Incidentally, ", "As far as we know, ",
           "Do not forget: ", "Later it was learned that ", "Let it be stated that ", "One more thing: ", "- ", "* ",
           "He wrote in his diary that ", "The caption says ", "Here is what matters: ", "Update: ", "P.S. ")
OF = ("of", "for", "belonging to", "attached to", "kept for", "assigned to", "linked with", "reserved for", "held by",
      "given to", "connected with", "listed for", "that goes with", "registered for", "concerning", "noted beside")
IS = (" is ", " is ", " is: ", ": ", " = ", " was ", " reads ", " reads: ", " equals ", " has been fixed as ",
      " turned out to be ", ", namely ", " - ", " is given as ", " -> ", " must be ", " stays ", " became ",
      " is now ", " is the following: ", " happens to be ", ", which is ", " is set to ", " is recorded as ", " is \"{q}\"")
IS_KEY = (" has the {r} {v}", " has {v} as its {r}", " comes with the {r} {v}", " carries the {r} {v}",
          ", {r}: {v}", " ({r} {v})", " uses {v} as {r}", " is filed under the {r} {v}", " got the {r} {v}",
          "'s {r} is {v}", "'s {r}: {v}", " shows {v} where the {r} should be", " is known by its {r}, {v}",
          " keeps {v} for a {r}", " answers to the {r} {v}", " received {v} as a {r}", " - {r}: {v}")
VALUE_FIRST = ("{v} is the {r} {of} {k}", "{v}: that is the {r} {of} {k}", "{v} serves as the {r} {of} {k}",
               "{v} was chosen as the {r} {of} {k}", "the value {v} is the {r} {of} {k}", "{v}, the {r} {of} {k}",
               "they settled on {v} for the {r} {of} {k}", "you will find {v} given as the {r} {of} {k}",
               "{v} stands for the {r} {of} {k}")
BRACKETS = ("[{r} {of} {k} = {v}]", "<{k}> {r}: {v}", "{k} / {r} / {v}", "({k}; {r}; {v})", "{r}[{k}] = {v}",
            "{k}\t{r}\t{v}", "# {k}: {r} {v}", "{{{k}: {v}}} ({r})", "| {k} | {r} | {v} |", "{r} ({k}): {v}",
            "** {r}, {k}: {v} **", "{k} => {v} [{r}]", "set the {r} {of} {k} to {v}")
CLOSERS = (".", ".", ".", ".", ".", "", "!", ";", ", they say.", ", as far as anyone knows.", " and nothing else.",
           ". Keep that in mind.", ", according to the list.", ". That is all.", " (checked twice).", ", for certain.",
           " at present.", ", it is said.")
MORE = ("another {r} {of} {k}{is}{v}", "a further {r} {of} {k}{is}{v}", "{k} also has the {r} {v}",
        "{v} is one more {r} {of} {k}", "{k}, next {r}: {v}", "among the {rs} {of} {k} there is {v}",
        "one {r} {of} {k}{is}{v}", "{k} has {v} among its {rs}")

ASKS = ("What is the {r} {of} {k}{where}?", "Which {r} is the one {of} {k}{where}?", "Tell me the {r} {of} {k}{where}.",
        "Do you recall the {r} {of} {k}{where}?", "Please give the {r} {of} {k}{where}.", "{k}: what is its {r}{where}?",
        "What was said to be the {r} {of} {k}{where}?", "Find the {r} {of} {k}{where}.", "And the {r} {of} {k}?",
        "I would like to know the {r} {of} {k}{where}.", "Can you repeat the {r} {of} {k}{where}?",
        "Name the {r} {of} {k}{where}.", "How does the {r} {of} {k} read{where}?", "Now the {r} {of} {k}, please.",
        "Somewhere there was a {r} {of} {k}. What was it?", "Which {r} goes with {k}{where}?", "{k} - {r}?",
        "What {r} did you see {of} {k}{where}?", "State the {r} {of} {k} exactly.", "Give me the {r} {of} {k}{where}.")
WHERE = ("", "", "", " in the text", " in the pages above", " according to the document", " as stated above",
         " that the text gives", " from what you have read", " in what came before", " as written there",
         " that was named earlier", " in this document", " from the passage above")
TELLS = ("The {r} {of} {k}{where}{is}{v}.", "The {r} {of} {k}{is}{v}.", "{k}: {v}", "{r}: {v}", "{v}", "{v}.",
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
         ("point to", "pointed to", "pointed to"), ("sign with", "signed with", "signed with"),
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


def statement(draw: random.Random) -> str:
    """Says a value of a key."""
    form = draw.random()
    if form < 0.12:
        return _filled(draw, draw.choice(BRACKETS))
    if form < 0.5:
        body = _joined(draw, "the {r} {of} {k}{is}{v}")
    elif form < 0.75:
        body = "{k}" + draw.choice(IS_KEY)
    else:
        body = draw.choice(VALUE_FIRST)
    return _filled(draw, _opened(draw, body) + draw.choice(CLOSERS))


def statement_more(draw: random.Random) -> str:
    """Says one of several values of a key."""
    return _filled(draw, _opened(draw, _joined(draw, draw.choice(MORE))) + draw.choice(CLOSERS))


def _opened(draw: random.Random, body: str) -> str:
    opener = draw.choice(OPENERS)
    if opener and not opener.endswith((": ", "- ", "* ", ". ")):
        return opener + body
    return opener + (body[0].upper() + body[1:] if body[0].isalpha() else body)


def question(draw: random.Random) -> str:
    """Asks for the value of a key."""
    return _filled(draw, draw.choice(ASKS), where=draw.choice(WHERE))


def reply(draw: random.Random) -> str:
    """Answers with the value."""
    return _filled(draw, _joined(draw, draw.choice(TELLS)), where=draw.choice(WHERE))


def event(draw: random.Random) -> tuple[str, str, str]:
    """Says a value of a key by something that happened: a statement, its question and its reply."""
    base, past, done = draw.choice(VERBS)
    moment, person, place = draw.choice(MOMENTS), draw.choice(PEOPLE), draw.choice(PLACES)
    form = draw.randrange(6)
    if form == 0:
        body = draw.choice((f"{{k}} {past} {{v}} {moment}", f"{moment}, {{k}} {past} {{v}}", f"{{k}} {past} {{v}}"))
        asked, told = f"What did {{k}} {base}?", f"{{k}} {past} {{v}}"
    elif form == 1:
        body = draw.choice((f"asked about {{k}}, the {person} {past} {{v}}", f"as for {{k}}, the {person} {past} {{v}}",
                            f"the {person} {past} {{v}} for {{k}} {moment}", f"thinking of {{k}}, a {person} {past} {{v}}"))
        asked, told = f"What did the {person} {base} about {{k}}?", f"The {person} {past} {{v}}"
    elif form == 2:
        body = draw.choice((f"on the {place} of {{k}} stood {{v}}", f"the {place} of {{k}} said {{v}}",
                            f"{{v}} was {done} on the {place} of {{k}}", f"one could read {{v}} on the {place} of {{k}}"))
        asked, told = f"What was on the {place} of {{k}}?", f"On the {place} of {{k}} was {{v}}"
    elif form == 3:
        (deed, deeds), (way, ways) = draw.choice(DEEDS), draw.choice(MEANS)
        body = draw.choice((f"to {deed} {{k}}, {way} {{v}}", f"whoever {deeds} {{k}} first {ways} {{v}}",
                            f"{way} {{v}} and you can {deed} {{k}}", f"they {deeds} {{k}} when they {ways} {{v}}"))
        asked, told = f"What does one {way} to {deed} {{k}}?", f"To {deed} {{k}}, one has to {way} {{v}}"
    elif form == 4:
        body = draw.choice((f"{{v}} was {done} by {{k}} {moment}", f"{{v}}, {done} by {{k}}, was soon forgotten",
                            f"it was {{v}} that {{k}} {past}"))
        asked, told = f"What was {done} by {{k}}?", f"{{v}} was {done} by {{k}}"
    else:
        body = draw.choice((f"between {{k}} and the {person} it was always {{v}}", f"{{k}} cost the {person} {{v}}",
                            f"the {person} knew {{k}} by {{v}}", f"where {{k}} was, there was {{v}}"))
        asked, told = f"What goes together with {{k}}{draw.choice(WHERE)}?", "It is {v}"
    told = draw.choice((told, told, told, "{v}", "It was {v}"))
    return _opened(draw, body) + draw.choice(CLOSERS), asked, told + draw.choice((".", ".", ""))


def parts() -> list[str]:
    """Every part above, for tests."""
    found = [*KINDS, *(word for some in (THINGS, VERBS, DEEDS, MEANS) for words in some for word in words)]
    for value in (OPENERS, OF, IS, IS_KEY, VALUE_FIRST, BRACKETS, CLOSERS, MORE, ASKS, WHERE, TELLS, PEOPLE, MOMENTS, PLACES):
        found.extend(value)
    return found
