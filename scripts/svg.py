"""Pieces of the pictures that scripts draw as SVG."""
import html


def text(x, y, kind, words, anchor="start"):
    """A line of text; `kind` is its class."""
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">'
            f"{html.escape(words)}</text>\n")


def line(x1, y1, x2, y2, kind="grid"):
    """A straight line; `kind` is its class."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>\n'
