#!/usr/bin/env python3
"""Writes chat/expected.json: conversations as each format's template writes them, by Jinja itself.

    pip install jinja2
    python make_chat.py                  # write chat/expected.json
    python make_chat.py --check          # make it again in memory and compare
    python make_chat.py --real FOLDER    # compare with the templates of the checkpoints, NAME.jinja

The templates below are shortened: what is for tools is left out, since nothing here calls any.
`--real` shows that this changes nothing for the conversations of this file.
"""
import argparse
import json
import pathlib
import sys

import jinja2.sandbox

OUT = pathlib.Path(__file__).parent / "chat" / "expected.json"

CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}{{ 'DEFAULT' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN25 = """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role != "system" or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
DEEPSEEK = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\n\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}"
    "{% elif message['role'] == 'system' %}{{ message['content'] + '\n\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
R1 = """{%- set ns = namespace(system='') -%}
{%- for message in messages if message['role'] == 'system' -%}
  {%- set ns.system = message['content'] -%}
{%- endfor -%}{{bos_token}}{{ns.system}}
{%- for message in messages -%}
  {%- if message['role'] == 'user' -%}{{'<｜User｜>' + message['content']}}{%- endif -%}
  {%- if message['role'] == 'assistant' -%}
    {{'<｜Assistant｜>' + message['content'].split('</think>')[-1] + '<｜end▁of▁sentence｜>'}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<｜Assistant｜><think>\\n'}}{%- endif %}"""
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}"
    "{% set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}"
    "{% else %}{% set turns = messages %}{% set system = '' %}{% endif %}"
    "{% for message in turns %}"
    "{% set content = system + message['content'] if loop.first else message['content'] %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
LLAMA3 = (
    "{% for message in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
LLAMA31 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
SMOLLM_DEFAULT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n"
)
BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
CHATML_PLAIN = CHATML.replace(
    "{% if loop.first and messages[0]['role'] != 'system' %}{{ 'DEFAULT' }}{% endif %}", "")

# name, format, architecture, begin, end, template
STYLES = [
    ("smollm2", "chatml", "llama", "<|im_start|>", "<|im_end|>",
     CHATML.replace("DEFAULT", SMOLLM_DEFAULT)),
    ("chatml", "chatml", "llama", "", "<|im_end|>", CHATML_PLAIN),
    ("qwen2.5", "chatml", "qwen2", "", "<|im_end|>", QWEN25),
    ("minicpm3", "minicpm", "minicpm3", "<s>", "<|im_end|>", CHATML_PLAIN),
    ("deepseek-v2", "deepseek", "deepseek_v2", BOS, EOS, DEEPSEEK),
    ("deepseek-r1", "deepseek-r1", "qwen2", BOS, EOS, R1),
    ("llama2", "llama2", "llama", "<s>", "</s>", LLAMA2),
    ("llama3", "llama3", "llama", "<|begin_of_text|>", "<|eot_id|>", LLAMA3),
    ("llama3.1", "llama3", "llama", "<|begin_of_text|>", "<|eot_id|>", LLAMA31),
]

CODE = "def f(x):\n\treturn {'a': x[0]}  # <b> & 'c' \"d\"\n\n\nprint(f([1]))\n"
CONVERSATIONS = {
    "one question": [("user", "Hello")],
    "a system message": [("system", "Answer in one word."), ("user", "Which sea is that?")],
    "three turns": [("user", "Hello"), ("assistant", "Hi there"), ("user", "Who are you?"),
                    ("assistant", "A program."), ("user", "Good.")],
    "a system message and two turns": [("system", "Be brief."), ("user", "One?"),
                                       ("assistant", "Two."), ("user", "Three?")],
    "an empty question": [("user", "")],
    "nothing but whitespace": [("user", " \n\t ")],
    "whitespace at the ends": [("system", "  S\n"), ("user", "\n  u  \n"), ("assistant", "  a \n"),
                               ("user", "\u3000v\u00a0")],
    "code": [("user", CODE), ("assistant", "```\n" + CODE + "```"), ("user", "Why?")],
    "a thought": [("user", "1+1?"), ("assistant", "<think>\none and one\n</think>\n\n2"),
                  ("user", "2+2?")],
    "other scripts": [("user", "灯台は何ですか？ Где маяк? 🏝️"), ("assistant", "島です。")
                      , ("user", "ありがとう")],
}


def render(template, begin, end, conversation):
    def raise_exception(text):
        raise ValueError(text)

    # The settings that transformers renders chat templates with.
    room = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    room.globals["raise_exception"] = raise_exception
    messages = [{"role": role, "content": text} for role, text in conversation]
    return room.from_string(template).render(
        messages=messages, bos_token=begin, eos_token=end, add_generation_prompt=True,
        enable_thinking=True)


def make():
    styles = []
    for name, kind, architecture, begin, end, template in STYLES:
        cases = [{"name": case, "messages": [list(turn) for turn in turns],
                  "text": render(template, begin, end, turns)}
                 for case, turns in CONVERSATIONS.items()]
        styles.append({"name": name, "format": kind, "architecture": architecture, "begin": begin,
                       "end": end, "template": template, "cases": cases})
    return json.dumps({"styles": styles}, ensure_ascii=False, indent=1) + "\n"


def compare_real(folder):
    bad = seen = 0
    for name, _, _, begin, end, template in STYLES:
        path = folder / (name + ".jinja")
        if not path.exists():
            print(f"{name}: no {path.name} in the folder")
            continue
        for case, turns in CONVERSATIONS.items():
            seen += 1
            if render(path.read_text(), begin, end, turns) != render(template, begin, end, turns):
                bad += 1
                print(f"{name}: \"{case}\" differs")
    print(f"{seen - bad} of {seen} conversations agree with the real templates")
    return bad


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--check", action="store_true", help="compare with the file")
    options.add_argument("--real", type=pathlib.Path, help="a folder with the real templates")
    args = options.parse_args()
    if args.real:
        return 1 if compare_real(args.real) else 0
    text = make()
    if args.check:
        same = OUT.read_text(encoding="utf-8") == text
        print("the same" if same else "expected.json differs")
        return 0 if same else 1
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
