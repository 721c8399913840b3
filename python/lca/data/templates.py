"""Wordings of planted tasks.

A fact combines a relation, a statement, a question and a reply, each drawn by itself: {r} the relation, {rs} its
plural, {k} the key, {v} the value. No four words in a row are RULER's; python/tests/test_data_tasks.py compares them.
"""

from __future__ import annotations

RELATIONS = (
    ("access code", "access codes"), ("shelf mark", "shelf marks"), ("ledger entry", "ledger entries"),
    ("call sign", "call signs"), ("serial", "serials"), ("catalogue reference", "catalogue references"),
    ("password", "passwords"), ("ticket", "tickets"), ("registration", "registrations"), ("label", "labels"),
    ("permit", "permits"), ("batch mark", "batch marks"), ("locker combination", "locker combinations"),
    ("delivery note", "delivery notes"), ("case file", "case files"), ("signature", "signatures"),
    ("cipher", "ciphers"), ("reading", "readings"), ("tag", "tags"), ("account", "accounts"),
    ("membership card", "membership cards"), ("inspection mark", "inspection marks"), ("token", "tokens"),
    ("archive slot", "archive slots"), ("watchword", "watchwords"), ("map reference", "map references"),
    ("tracking code", "tracking codes"), ("docket", "dockets"), ("licence", "licences"), ("stamp", "stamps"),
)

STATEMENTS = (
    "The {r} of {k} is {v}.",
    "{k} has the {r} {v}.",
    "For {k}, the {r} reads {v}.",
    "Note that {k} goes by the {r} {v}.",
    "According to the clerk, the {r} belonging to {k} is {v}.",
    "Whoever deals with {k} will need the {r} {v}.",
    "In the margin somebody had written: {k}, {r} {v}.",
    "It was agreed that {v} should be the {r} of {k}.",
    "{v} is the {r} under which {k} was entered.",
    "The record shows {v} as the {r} of {k}.",
    "As for {k}: its {r} is {v}.",
    "[{k}: {r} = {v}]",
    "({r} of {k}: {v})",
    "Reminder: {k} uses the {r} {v}.",
    "When asked about {k}, they gave the {r} {v}.",
    "On the inside of the cover one reads that the {r} of {k} was changed to {v}.",
    "Do not confuse the others with {k}, whose {r} is {v}.",
    "The office assigned the {r} {v} to {k}.",
)

QUESTIONS = (
    "What is the {r} of {k}?",
    "Which {r} does {k} have?",
    "Which {r} was given for {k}?",
    "Please state the {r} of {k}.",
    "Tell me the {r} that belongs to {k}.",
    "I need the {r} for {k}. What is it?",
    "The text names the {r} of {k}. Which one is it?",
    "Look up {k}: what {r} is stated?",
    "Under which {r} does {k} appear?",
    "What did the text say about the {r} of {k}?",
)
BARE_QUESTIONS = (
    "What is the {r} of {k}? Reply with the {r} alone.",
    "{k}: which {r}? Write nothing else.",
    "Give just the {r} of {k}.",
    "Return only the {r} that belongs to {k}.",
)
REPLIES = (
    "The {r} of {k} is {v}.",
    "{k} has the {r} {v}.",
    "The {r} for {k} is {v}.",
    "It is {v}.",
    "According to the text, the {r} of {k} is {v}.",
    "The text says {v}.",
    "The {r} that belongs to {k} is {v}.",
)

SEVERAL_QUESTIONS = (
    "State the {rs} of the following, in this order: {ks}.",
    "What are the {rs} of {ks}?",
    "For each of {ks}, write down the {r}.",
    "I am looking for the {rs} that belong to {ks}. List them.",
)

SHARED_STATEMENTS = (
    "Among the {rs} kept for {k} is {v}.",
    "{k} also holds the {r} {v}.",
    "A further {r} of {k} is {v}.",
    "Another line gives {v} as one {r} of {k}.",
    "{k} may be found under the {r} {v} too.",
    "Besides, {v} is one {r} of {k}.",
)
SHARED_QUESTIONS = (
    "List every {r} kept for {k}.",
    "Which {rs} does {k} have? Name them all.",
    "{k} has several {rs}. Write all of them down.",
    "Collect all {rs} of {k} from the text.",
)
SHARED_REPLIES = ("The {rs} of {k} are {v}.", "{k} has the {rs} {v}.", "All {rs} of {k}: {v}.", "{v}.")

REVERSED_QUESTIONS = (
    "Who or what has the {r} {v}?",
    "To what does the {r} {v} belong?",
    "The {r} {v} was given for something. For what?",
)
REVERSED_REPLIES = ("The {r} {v} belongs to {k}.", "It belongs to {k}.", "{k}.")

RECORDS = (
    "{k}: {v}", "{k} | {r} | {v}", "{k} -> {v}", "{k},{v}", "{k} ... {v}", "- {k} ({r} {v})",
    "{{\"name\": \"{k}\", \"{r}\": \"{v}\"}}", "entry: {k}; {r}: {v}", "The {r} of {k} is {v}.",
)

#: Chains: where the value enters ({a}, {v}), a link ({b} from {a}), questions and replies about the last name and
#: about all names ({n} of them).
CHAINS = (
    {"start": "Jar {a} holds {v} beans.", "link": "Jar {b} was filled with exactly as many beans as jar {a}.",
     "ask": "How many beans does jar {b} hold?", "reply": "Jar {b} holds {v} beans.",
     "ask_all": "Which jars hold {v} beans?", "reply_all": "The jars with {v} beans are {b}."},
    {"start": "let {a} := {v};", "link": "let {b} := {a};",
     "ask": "What does {b} evaluate to?", "reply": "{b} evaluates to {v}.",
     "ask_all": "Name each identifier that evaluates to {v}.", "reply_all": "{b} evaluate to {v}."},
    {"start": "{a}'s parcel weighs {v} grams.", "link": "{b}'s parcel weighs the same as {a}'s.",
     "ask": "What is the weight of {b}'s parcel?", "reply": "{b}'s parcel weighs {v} grams.",
     "ask_all": "Whose parcels weigh {v} grams?", "reply_all": "Those of {b}."},
    {"start": "Signal {a} was set to {v}.", "link": "Signal {b} copies signal {a}.",
     "ask": "What does signal {b} show?", "reply": "Signal {b} shows {v}.",
     "ask_all": "List the signals that show {v}.", "reply_all": "These signals show {v}: {b}."},
    {"start": "{a} keeps the key of room {v}.", "link": "The key that {a} kept went to {b}.",
     "ask": "Of which room did {b} get the key?", "reply": "{b} got the key of room {v}.",
     "ask_all": "Who had the key of room {v} at some time?", "reply_all": "The key of room {v} was with {b}."},
    {"start": "set {a} {v}", "link": "set {b} ${a}",
     "ask": "After these commands, what is {b}?", "reply": "{b} is {v}.",
     "ask_all": "Which names stand for {v} after these commands?", "reply_all": "{b} stand for {v}."},
)

PASSAGE_QUESTIONS = (
    "Quote the passage that starts like this: \"{cue} …\"",
    "Continue word for word the passage of the text that opens with \"{cue}\".",
    "Write out the part of the text beginning \"{cue}\".",
    "How does the text go on after \"{cue}\"? Copy it exactly.",
)

INTRODUCTIONS = (
    "Read the text and keep its details in mind.",
    "Here is a long text; a question comes after it.",
    "Below you find some pages. Study them with care.",
    "Please go through the following pages.",
    "The text contains a few remarks that do not belong to it. They matter.",
    "Use the document to answer.",
    "",
)
FIRST_INTRODUCTIONS = (
    "Keep this question in mind while you read:",
    "First the question, then the text.",
    "You will find what is asked for somewhere in the pages below.",
    "Question:",
)
AGAIN = ("Now answer.", "Now answer the question asked at the beginning.", "So, what is your reply?", "")
PLAIN_LEADS = (("", ""), ("Question: ", "Answer: "), ("Q: ", "A: "), ("- ", "  "), ("[?] ", "[!] "))


def wordings() -> list[str]:
    """Every wording above."""
    found: list[str] = []
    for value in (STATEMENTS, QUESTIONS, BARE_QUESTIONS, REPLIES, SEVERAL_QUESTIONS, SHARED_STATEMENTS,
                  SHARED_QUESTIONS, SHARED_REPLIES, REVERSED_QUESTIONS, REVERSED_REPLIES, RECORDS,
                  PASSAGE_QUESTIONS, INTRODUCTIONS, FIRST_INTRODUCTIONS, AGAIN):
        found.extend(value)
    for chain in CHAINS:
        found.extend(chain.values())
    found.extend(word for pair in RELATIONS + PLAIN_LEADS for word in pair)
    return found
