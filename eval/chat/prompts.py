#!/usr/bin/env python3
"""Writes prompts for chat text: the base model's own replies to them are the chat part of the training data.

    eval/chat/prompts.py FILE [--count 8000] [--seed 0]

Templates and topics of our own (topics.py) of many kinds: explanations, instructions, lists, comparisons, rewriting,
code, arithmetic, stories, letters, words, people and places, advice. A line is {"messages": […]}: some
conversations begin with a system message, most have none. No prompt has six words in a row of one of
../prompts_everyday.txt, on which the cost of an adapter is measured.
"""
import argparse
import json
import pathlib
import random
import re

import topics as t

EVERYDAY = pathlib.Path(__file__).resolve().parent.parent / "prompts_everyday.txt"
RUN = 6  # words in a row that no prompt shares with the everyday ones
SYSTEM_SHARE = 0.15


def _split(text):
    return text.strip().replace("\n", " ").split("|")


EXPLAIN = _split("""
Explain {} in simple terms.|What should everyone know about {}?|Give me a short introduction to
{}.|Write a paragraph about {}.|Tell me three interesting facts about {}.|How would you explain {} to a
ten-year-old?|Why do people study {}?|I have to give a short talk about {}. What should I say?|What are common
misconceptions about {}?|Write a quiz question about {} and give the answer.|Summarise what is known about {} in
four sentences.|What is the history of {}?|Describe {} to somebody who has never heard of the topic.|Write an
encyclopedia entry of about one hundred words on {}.|What is the first thing to learn about {}?|Write five
flashcards about {}.|Give me an outline for an essay on {}.|Why does {} matter today?|Write a short poem about
{}.|What questions about {} are still open?|Make up an analogy for {}.""")
HOW = _split("""
How do I {}?|What is the best way to {}?|Give me step-by-step instructions to {}.|I want to {}. Where do I
start?|What do I need in order to {}?|What mistakes should I avoid when I {}?|Explain to a beginner how to {}.|Can
you help me {}?|List the tools I need to {}.|How long does it take to {}, and what does it cost?|Write a checklist
for someone who wants to {}.|Give me one tip to {} more easily.""")
LISTS = _split("""
Give me {n} examples of {}.|List {n} {}.|Name {n} {} and say one sentence about each.|What are some
{}?|Write a numbered list of {n} {}.|Suggest {n} {}.|I am looking for {}. Can you think of {n}?|Make a bullet list
of {}.""")
COMPARE = _split("""
What is the difference between {}?|Compare {} in two or three sentences.|How can I remember the
difference between {}?|Explain the difference between {} with an example.|When does the difference between {}
matter?""")
REWRITE = _split("""
Rewrite this sentence in better English: "{}."|Correct any mistakes: {}.|Make this more formal:
"{}."|Make this sound friendlier: "{}."|Say this in fewer words: "{}."|Put this into the future tense:
{}.|Paraphrase the following sentence: {}.|Turn this into a short news headline: {}.|Continue this text with two
more sentences: {}.|What is wrong with this sentence? "{}."|Write the same as a question: {}.|Expand this into a
paragraph: {}.""")
CODING = _split("""
Write a program in {language} that {task}.|Write a {language} function that {task}.|How would you write
code in {language} that {task}?|Show me a short example in {language} that {task}, with comments.|I am learning
{language}. Give me code that {task} and explain it line by line.|Write code in {language} that {task}. Also write a
test for it.""")
STORY = _split("""
Write a short story about {who} who {event} {where}.|Write the first paragraph of a story {where}: {who}
{event}.|Tell a bedtime story in which {who} {event} {where}.|Write a funny scene {where} in which {who}
{event}.|Invent a title and a plot summary for a story about {who} who {event}.|Write a poem of eight lines about
{who} {where}.|Write a dialogue between {who} and {other} {where}.|How could a story end in which {who} {event}?""")
LETTERS = _split("""
Write a short e-mail to {to}, {what}.|Draft a letter to {to}, {what}.|Write a friendly message to {to},
{what}. Keep it under eighty words.|Help me write to {to}: I am {what}.|Write a subject line and a text for an
e-mail to {to}, {what}.""")
WORD = _split("""
What does "{}" mean?|Use the word "{}" in three sentences.|Give me synonyms and antonyms of "{}".|Explain
the word "{}" to a child.|Where does the word "{}" come from?|Write a sentence with "{}" and another word that means
the same.""")
LAND = _split("""
What is {} known for?|Tell me about the geography of {}.|What should I see when I visit {}?|Which
languages are spoken in {}?|Describe a typical meal in {}.|Plan a three-day trip to {}.|Name two famous people from
{} and what they did.|What is the climate of {} like?""")
PERSON = _split("""
Who was {}?|What did {} achieve?|Write a short biography of {}.|Imagine an interview with {}. Write two
questions and answers.|Why is {} still remembered?|When and where did {} live?|Write three quiz questions about {}.""")
ADVICE = _split("""
What should I do? The problem: {}.|Give me advice: {}.|I need your help, because {}.|Give me five
practical tips. My situation: {}.|What would you say to a friend who tells you: "{}"?|I have a problem: {}. What are
my options?""")
REVIEW = _split("""
Is this review positive, negative or mixed? "{}."|Write a polite answer to this review: "{}."|Summarise
this review in five words: "{}."|Which product or service might this be about? "{}."|Rewrite this review so that it
is more detailed: "{}.\"""")
TRANSLATE = _split("""
Translate into {}: {}|How do you say this in {}? {}|Translate the sentence into {} and explain each
word: {}""")
LIMITS = [*[""] * 6, " Answer in one sentence.", " Keep it short.", " Use a list.", " Answer in about fifty words.",
          " Give an example.", " Please explain your reasoning."]
NAMES = ["Maya", "Tom", "Lena", "Omar", "Ruth", "Ivan", "Sara", "Felix", "Nina", "Jonas", "Aisha", "Paul"]
GOODS = [("apples", 0.4), ("notebooks", 2.5), ("tickets", 12.0), ("bags of flour", 1.8), ("candles", 3.2),
         ("plants", 6.5)]


def arithmetic(draw):
    """A small calculation or word problem."""
    a, b, c = draw.randint(3, 99), draw.randint(2, 60), draw.randint(2, 12)
    who, (good, price) = draw.choice(NAMES), draw.choice(GOODS)
    return draw.choice([
        f"What is {a} plus {b}?", f"What is {a} times {c}?", f"Subtract {b} from {a + b}.", f"Divide {a * c} by {c}.",
        f"What is {5 * c} percent of {20 * b}?", f"Is {a} a prime number? Explain how you know.",
        f"{who} buys {c} {good} at ${price:.2f} each. How much does that cost?",
        f"{who} has {a} stamps and gives away {min(a, b)}. How many are left?",
        f"A bus leaves at {c % 12 + 1}:15 and arrives {b} minutes later. When does it arrive?",
        f"A rectangle is {a} cm long and {b} cm wide. What are its area and perimeter?",
        f"A car drives {10 * b} km in {c} hours. What is its average speed?",
        f"Solve the equation {c}x + {b} = {c * a + b}.", f"Write {a}/{a + b} as a decimal number.",
        f"{who} reads {b} pages a day. How many days does a book of {b * c} pages take?",
        f"What comes next: {c}, {c + b}, {c + 2 * b}, {c + 3 * b}?",
        f"Round {a + b / 100:.2f} to the nearest whole number.",
        f"Convert {b} hours into minutes.", f"How many dozens are {12 * c} eggs?",
        f"If {c} workers need {b} days for a job, how long do {2 * c} workers need?",
        f"What is the average of {a}, {b} and {c}?"])


def prompt_make(kind, draw):
    """One prompt of a kind."""
    pick = draw.choice
    if kind == "arithmetic":
        return arithmetic(draw)
    if kind == "code":
        return pick(CODING).format(language=pick(t.LANGUAGES), task=pick(t.CODE))
    if kind == "story":
        return pick(STORY).format(who=pick(t.PEOPLE), other=pick(t.PEOPLE), event=pick(t.EVENTS), where=pick(t.PLACES))
    if kind == "letter":
        return pick(LETTERS).format(to=pick(t.RECIPIENTS), what=pick(t.OCCASIONS))
    if kind == "translate":
        return pick(TRANSLATE).format(pick(t.TONGUES), pick(t.PHRASES))
    if kind == "list":
        return pick(LISTS).format(pick(t.CATEGORIES), n=pick(["three", "four", "five", "six", "seven", "eight", "ten"]))
    templates, subjects = {
        "explain": (EXPLAIN, t.SUBJECTS), "how": (HOW, t.TASKS), "compare": (COMPARE, t.PAIRS), "word": (WORD, t.WORDS),
        "rewrite": (REWRITE, t.SENTENCES), "land": (LAND, t.COUNTRIES), "person": (PERSON, t.FIGURES),
        "advice": (ADVICE, t.SITUATIONS), "review": (REVIEW, t.REVIEWS)}[kind]
    limit = pick(LIMITS) if kind in ("explain", "how", "compare", "land", "advice") else ""
    return pick(templates).format(pick(subjects)) + limit


#: Kinds with their weights.
KINDS = {"explain": 26, "how": 13, "list": 10, "compare": 5, "rewrite": 6, "code": 9, "arithmetic": 7, "story": 8,
         "letter": 5,
         "word": 3, "translate": 2, "land": 4, "person": 4, "advice": 3, "review": 1}


def words_of(text):
    return re.findall(r"[a-z0-9']+", text.lower())


def runs_of(text):
    words = words_of(text)
    return {tuple(words[at:at + RUN]) for at in range(max(1, len(words) - RUN + 1))}


def prompts_make(count, seed):
    """Conversations that end with a user message, each once."""
    forbidden = {run for line in EVERYDAY.read_text(encoding="utf-8").splitlines() for run in runs_of(line)}
    draw, seen, made = random.Random(seed), set(), []
    for _ in range(100 * count):
        if len(made) == count:
            return made
        text = prompt_make(draw.choices(list(KINDS), list(KINDS.values()))[0], draw)
        if text in seen or runs_of(text) & forbidden:
            continue
        seen.add(text)
        system = [{"role": "system", "content": draw.choice(t.SYSTEMS)}] if draw.random() < SYSTEM_SHARE else []
        made.append(system + [{"role": "user", "content": text}])
    raise SystemExit(f"prompts: there are not {count} prompts")


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("file", type=pathlib.Path)
    options.add_argument("--count", type=int, default=8000)
    options.add_argument("--seed", type=int, default=0)
    args = options.parse_args()
    lines = [json.dumps({"messages": messages}, ensure_ascii=False) for messages in prompts_make(args.count, args.seed)]
    args.file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} prompts: {args.file}")


if __name__ == "__main__":
    main()
