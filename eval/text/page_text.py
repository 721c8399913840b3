"""Text of documentation pages: HTML, POD, info and plain files, by regular expressions alone.

Made for the pages of manuals, which are well formed: headings become Markdown's, program text is fenced, navigation is
left out. `english_share` tells prose from tables of symbols. The hashes of files.csv depend on every character that comes
out of here: nested marks of POD, say, are left as they are (some remain) until the list is made anew.
"""

from __future__ import annotations

import gzip
import html
import re

_DROP = re.compile(rb"<!--.*?-->|<[?!][^>]*>|<(script|style|head|svg|math|select|button)\b.*?</\1\s*>",
                   re.DOTALL | re.IGNORECASE)
_TOKEN = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)([^>]*)>|([^<]+)|<")
_SPACE = re.compile(r"\s+")
_SKIP_TAGS = {"nav", "header", "footer", "aside", "form"}
# Classes and ids of navigation in Sphinx, DocBook, mdBook, texi2html, scribble and others.
_SKIP_NAMES = re.compile(
    r"(?:class|id|role)\s*=\s*[\"']?(?:[^\"'>]*\s)?(?:sphinxsidebar|sphinxsidebarwrapper|related|headerlink|nav\w*|toc|"
    r"toctree-wrapper|contents|table-of-contents|short_table_of_contents|sidebar|breadcrumbs?|linenos|footer|tocset|"
    r"menu\w*|menu-bar|navsetbottom|navsettop|header|nav-panel|copiable-link|page-header|bottomsearch|langavail|lang|"
    r"outofdate|quickview|searchbox|viewcode-link|permalink|indexterm|navigation|top-link|nav-wrapper|buttons|"
    r"tocview|tocsub)(?=[\s\"'>]|$)", re.IGNORECASE)
_WHOLE = {"html", "body", "main", "article", "h1", "h2", "h3"}  # never left out
_VOID = {"br", "img", "hr", "input", "link", "meta", "wbr", "col", "area", "source", "base"}
_BLOCK = {"p", "div", "ul", "ol", "dl", "dt", "dd", "table", "blockquote", "section", "article", "caption", "tbody",
          "thead", "figure", "figcaption", "main", "body", "center"}
_HEADING = re.compile(r"h[1-6]$")
_COMMON = frozenset("the of to a and in is for that it be as with are this by on or not an from which can you if was "
                    "will at have has its when all one but any he his they".split())
_WORD = re.compile(r"[A-Za-z]+")


class _Writer:
    """Collects blocks of text."""

    def __init__(self) -> None:
        self.blocks: list[str] = []
        self.line: list[str] = []
        self.lead = ""

    def end(self) -> None:
        text = _SPACE.sub(" ", html.unescape("".join(self.line))).strip(" |")
        if text:
            self.blocks.append(self.lead + text)
        if text or not self.lead.startswith("-"):
            self.lead = ""
        self.line = []

    def code(self, text: str) -> None:
        text = html.unescape(text).expandtabs(8).strip("\n").rstrip()
        if text.strip():
            self.blocks.append(f"```\n{text}\n```")

    def text(self) -> str:
        self.end()
        joined = []
        for at, block in enumerate(self.blocks):
            tight = at and block.startswith(("- ", "| ")) and self.blocks[at - 1][:2] == block[:2]
            joined.append(("\n" if tight else "\n\n") if at else "")
            joined.append(block)
        return "".join(joined) + "\n"


def html_text(raw: bytes) -> str:
    """The text of a page without its navigation."""
    raw = _DROP.sub(b" ", raw)
    try:
        source = raw.decode("utf-8")
    except UnicodeDecodeError:
        source = raw.decode("latin-1")
    writer, skip, depth, code = _Writer(), "", 0, None
    for match in _TOKEN.finditer(source):
        closing, name, attributes, words = match.groups()
        if words is not None or name is None:
            if depth:
                continue
            (writer.line if code is None else code).append(words or "<")
            continue
        name = name.lower()
        if depth:
            if name == skip and not attributes.endswith("/"):
                depth += -1 if closing else 1
            continue
        if not closing and name not in _VOID and name not in _WHOLE and not attributes.endswith("/") and \
                (name in _SKIP_TAGS or attributes and _SKIP_NAMES.search(attributes)):
            skip, depth = name, 1
        elif name == "pre":
            if not closing:
                writer.end()
                code = []
            elif code is not None:
                writer.code("".join(code))
                code = None
        elif code is not None:
            if name == "br":
                code.append("\n")
        elif _HEADING.match(name):
            writer.end()
            writer.lead = "" if closing else "#" * int(name[1]) + " "
        elif name == "li":
            writer.end()
            writer.lead = "" if closing else "- "
        elif name == "tr":
            writer.end()
            writer.lead = "" if closing else "| "
        elif name in ("td", "th"):
            if not closing and writer.line:
                writer.line.append(" | ")
        elif name == "br":
            writer.line.append(" ")
        elif name in _BLOCK:
            if not (writer.lead == "| " and name in ("p", "div", "dl", "dd", "dt", "ul")):
                writer.end()
            else:
                writer.line.append(" ")
    return writer.text()


_POD_LINK = re.compile(r"L<(?:[^<>|]*\|)?([^<>]*)>")
_POD_CODE = re.compile(r"[IBCFSXZE]<+\s?([^<>]*?)\s?>+")
_ENTITIES = {"lt": "<", "gt": ">", "sol": "/", "verbar": "|"}


def pod_text(raw: bytes) -> str:
    """Perl's documentation: headings as Markdown's, marks of fonts and links removed."""
    out = []
    for block in re.split(r"\n\s*\n", raw.decode("utf-8", "replace")):
        command = re.match(r"=(\w+)\s*(.*)", block, re.DOTALL)
        if command:
            name, rest = command.groups()
            if name.startswith("head"):
                block = "#" * int(name[4:] or 1) + " " + rest
            elif name == "item":
                block = "- " + (rest.lstrip("* ") or "")
            else:
                continue
        if not block.startswith((" ", "\t")):
            block = re.sub(r"E<(lt|gt|sol|verbar)>", lambda m: _ENTITIES[m[1]], block)
            block = re.sub(r"X<[^<>]*>", "", block)
            for _ in range(3):
                block = _POD_CODE.sub(r"\1", _POD_LINK.sub(r"\1", block))
            block = _SPACE.sub(" ", block).strip()
        if block.strip(" -"):
            out.append(block.rstrip())
    return "\n\n".join(out) + "\n"


def info_text(raw: bytes) -> str:
    """An info file without its node lines, menus and index."""
    out = []
    for node in raw.decode("utf-8", "replace").split("\x1f\n")[1:]:
        head, _, body = node.partition("\n")
        if head.startswith(("Tag Table", "End Tag", "Indirect")) or re.search(r"Node: [^,]*Index", head):
            continue
        out.append(re.sub(r"^\* Menu:.*?(?=\n\n[^*\s]|\Z)", "", body, flags=re.DOTALL | re.MULTILINE).strip())
    return "\n\n".join(each for each in out if each) + "\n"


def plain_text(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace").replace("\r\n", "\n").replace("\f", "\n")
    return re.sub(r"\n{4,}", "\n\n\n", re.sub(r"[ \t]+\n", "\n", text)).strip() + "\n"


def page_text(name: str, raw: bytes) -> str:
    """The text of a page by the ending of its name."""
    if name.endswith(".gz"):
        name, raw = name[:-3], gzip.decompress(raw)
    if re.search(r"\.x?html?$", name):
        return html_text(raw)
    if name.endswith(".pod"):
        return pod_text(raw)
    if re.search(r"\.info(-\d+)?$", name):
        return info_text(raw)
    return plain_text(raw)


def english_share(text: str) -> float:
    """Share of words that are among English's most common: some 0.3 in prose, less than 0.1 in lists of names."""
    words = _WORD.findall(text.lower())
    return sum(word in _COMMON for word in words) / max(1, len(words))
