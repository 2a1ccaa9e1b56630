"""Draws lines over time as an SVG picture, with panels in two columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

Points = Sequence[tuple[float, float]]
_COLOURS = ("#1f5fa8", "#c2410c", "#15803d", "#7e22ce", "#475569", "#a16207")
_COLUMNS, _WIDTH, _HEIGHT = 2, 440, 170
_LEFT, _TOP, _RIGHT, _BOTTOM = 52, 36, 12, 22
_STYLE = "text{font:11px sans-serif;fill:#333}.t{font-weight:bold}polyline{fill:none;stroke-width:1.2}"


@dataclass(frozen=True)
class Panel:
    """One panel: lines by their names.

    Args:
        title: What is shown, with its unit.
        lines: The points of each line: seconds since the start, and the value.
    """

    title: str
    lines: Mapping[str, Points]


def draw(file: Path, panels: Sequence[Panel]) -> None:
    """Write the picture."""
    rows = math.ceil(len(panels) / _COLUMNS)
    width, height = _COLUMNS * _WIDTH, rows * _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        f'<style>{_STYLE}</style><rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for number, panel in enumerate(panels):
        x, y = number % _COLUMNS * _WIDTH, number // _COLUMNS * _HEIGHT
        parts += [f'<g transform="translate({x} {y})">', *_panel(panel), "</g>"]
    file.write_text("\n".join([*parts, "</svg>\n"]), encoding="utf-8")


def _panel(panel: Panel) -> list[str]:
    points = [point for line in panel.lines.values() for point in line]
    end = max((at for at, _ in points), default=0.0) or 1.0
    top = _round_up(max((value for _, value in points), default=0.0))
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    parts = [f'<text class="t" x="{_LEFT}" y="14">{escape(panel.title)}</text>']
    for share in (0.0, 0.5, 1.0):
        y = _TOP + high * (1 - share)
        parts.append(f'<path d="M{_LEFT} {y:.1f}h{wide}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * share:,.5g}</text>')
        at = _LEFT + wide * share
        parts.append(f'<text x="{at:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{_time(end * share)}</text>')
    x = _LEFT
    for colour, (name, line) in zip(_COLOURS, panel.lines.items(), strict=False):
        parts.append(f'<text x="{x}" y="28" style="fill:{colour}">{escape(name)}</text>')
        x += 8 * len(name) + 6
        drawn = " ".join(f"{_LEFT + at / end * wide:.1f},{_TOP + high * (1 - v / top):.1f}" for at, v in line)
        parts.append(f'<polyline points="{drawn}" stroke="{colour}"/>')
    return parts


def _round_up(value: float) -> float:
    """The smallest of 1, 2, 4, 5 and 10 times a power of ten that is at least the value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 10) if value <= step * power)


def _time(seconds: float) -> str:
    return f"{seconds / 60:.3g} min"
