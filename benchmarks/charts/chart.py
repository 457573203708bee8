"""Draws a bar chart as SVG: groups of bars, each with its own scale; less is better."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from harness.tables import format_number

WIDTH, BAR_X, BAR_WIDTH, BAR_HEIGHT = 820, 210, 480, 20
TITLE_HEIGHT, GROUP_GAP, BAR_GAP, TOP = 26, 14, 4, 16
FIRST, OTHERS = "#9aa0a6", "#4051b5"
"""Colours of the first bar of a group, which the others are compared with, and of those."""

Group = tuple[str, str, Sequence[tuple[str, float]]]
"""A title, a unit, and bars: name and value."""


def draw(groups: Sequence[Group]) -> str:
    """Return the chart."""
    parts: list[str] = []
    y = TOP
    for title, unit, bars in groups:
        parts.append(_text(20, y + 14, title, ' font-weight="bold"'))
        y += TITLE_HEIGHT
        longest = max(value for _, value in bars)
        for number, (name, value) in enumerate(bars):
            width = max(2.0, BAR_WIDTH * value / longest)
            parts += [
                _text(20, y + 15, name),
                f'<rect x="{BAR_X}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" '
                f'rx="3" fill="{OTHERS if number else FIRST}"/>',
                _text(BAR_X + width + 8, y + 15, f"{format_number(value)} {unit}"),
            ]
            y += BAR_HEIGHT + BAR_GAP
        y += GROUP_GAP
    spoken = "; ".join(
        f"{title}: " + ", ".join(f"{name} {format_number(value)} {unit}" for name, value in bars)
        for title, unit, bars in groups
    )
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" '
        f'width="{WIDTH}" height="{y}" role="img" font-family="sans-serif" font-size="14">',
        f"<title>{escape(spoken)}</title>",
        f'<rect width="{WIDTH}" height="{y}" rx="8" fill="#ffffff"/>',
    ]
    return "\n".join([*head, *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text x="{x:g}" y="{y}"{style} fill="#202124">{escape(text)}</text>'
