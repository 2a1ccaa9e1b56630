"""A graph as an SVG picture, in layers from left to right; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import combinations, pairwise
from statistics import mean

from headrace.plan.drawing import Graph

_HEIGHT, _LETTER, _PADDING = 36.0, 7.3, 16.0  # of a box in pixels
_BESIDE, _BELOW, _MARGIN = 64.0, 18.0, 16.0  # the pixels between layers, between boxes and around all
_SWEEPS = 12
_FILLS = {
    "source": "#eceff4",
    "table": "#dff3e6",
    "view": "#e2ecfd",
    "temporary": "#ffffff",
    "sink": "#fdeed6",
}
_STYLE = (
    "rect{stroke:#57606a} text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#1f2328} "
    ".temporary rect{stroke-dasharray:4 3} path{fill:none;stroke:#8c959f;stroke-width:1.5}"
)
_ARROW = (
    '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
    'orient="auto"><path d="M0,0 L8,4 L0,8" style="fill:#8c959f;stroke:none"/></marker></defs>'
)


def draw_svg(graph: Graph) -> str:
    """The graph as SVG. A pipeline's graph has no cycle."""
    chains, layers = _layers(graph)
    links = [pair for chain in chains for pair in pairwise(chain)]
    layers = _ordered(layers, links)
    tops = _tops(layers, links)
    nodes = {node.key: node for node in graph.nodes}
    widths = {key: len(node.label) * _LETTER + 2 * _PADDING for key, node in nodes.items()}
    lefts, right = dict[str, float](), _MARGIN
    for layer in layers:
        wide = max((widths[key] for key in layer if key in nodes), default=0)
        lefts |= dict.fromkeys(layer, right)
        widths |= {key: wide for key in layer if key not in nodes}
        right += wide + _BESIDE
    lines = []
    for chain in chains:
        points = [(lefts[chain[0]] + widths[chain[0]], tops[chain[0]])]
        for key in chain[1:]:
            points += [(lefts[key], tops[key])]
            points += [(lefts[key] + widths[key], tops[key])] if key not in nodes else []
        lines.append(f'<path d="{_curve(points)}" marker-end="url(#arrow)"/>')
    for key, node in nodes.items():
        place = f'x="{lefts[key]:.1f}" y="{tops[key] - _HEIGHT / 2:.1f}" width="{widths[key]:.1f}"'
        corner = 18 if node.kind == "source" else 6
        box = f'<rect {place} height="{_HEIGHT:.0f}" rx="{corner}" fill="{_FILLS[node.kind]}"/>'
        text = f'<text x="{lefts[key] + _PADDING:.1f}" y="{tops[key] + 4:.1f}">{escape(node.label)}</text>'
        lines.append(f'<g class="{node.kind}">{box}{text}</g>')
    size = (
        f"{max(right - _BESIDE + _MARGIN, 0):.0f}",
        f"{max(tops.values(), default=0) + _HEIGHT / 2 + _MARGIN:.0f}",
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}">'
    return "\n".join([head, f"<style>{_STYLE}</style>", _ARROW, *lines, "</svg>"])


def _layers(graph: Graph) -> tuple[list[list[str]], list[list[str]]]:
    """For each edge the keys on its way, one in each layer, and the keys of each layer."""
    depths: dict[str, int] = {}

    def depth(key: str) -> int:
        if key not in depths:
            depths[key] = max((depth(one) + 1 for one, end in graph.edges if end == key), default=0)
        return depths[key]

    for node in graph.nodes:
        depth(node.key)
    for root in graph.roots():
        # A source is drawn one layer before its first reader.
        depths[root] = min((depths[child] for child in graph.children(root)), default=1) - 1
    chains = []
    for start, end in graph.edges:
        between = [f"{start}\0{end}\0{layer}" for layer in range(depths[start] + 1, depths[end])]
        depths |= {key: depths[start] + 1 + number for number, key in enumerate(between)}
        chains.append([start, *between, end])
    layers: list[list[str]] = [[] for _ in range(max(depths.values(), default=-1) + 1)]
    for key, number in depths.items():
        layers[number].append(key)
    return chains, layers


def _ordered(layers: list[list[str]], links: Sequence[tuple[str, str]]) -> list[list[str]]:
    """The layers in an order with few crossings: each key near the mean of its neighbours."""
    best, fewest = layers, _crossings(layers, links)
    for sweep in range(_SWEEPS if fewest else 0):
        at = {key: number for layer in layers for number, key in enumerate(layer)}
        near = _neighbours(links, sweep % 2)
        layers = [list(layer) for layer in layers]
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            layer.sort(key=lambda key: mean([at[one] for one in near.get(key, [key])]))
            at |= {key: number for number, key in enumerate(layer)}
        if (crossings := _crossings(layers, links)) < fewest:
            best, fewest = layers, crossings
    return best


def _neighbours(links: Sequence[tuple[str, str]], side: int) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for link in links:
        found.setdefault(link[1 - side], []).append(link[side])
    return found


def _crossings(layers: Sequence[Sequence[str]], links: Sequence[tuple[str, str]]) -> int:
    at = {key: (number, place) for number, layer in enumerate(layers) for place, key in enumerate(layer)}
    ends = sorted((*at[start], at[end][1]) for start, end in links)
    return sum(a[0] == b[0] and a[1] < b[1] and a[2] > b[2] for a, b in combinations(ends, 2))


def _tops(layers: Sequence[Sequence[str]], links: Sequence[tuple[str, str]]) -> dict[str, float]:
    """The middle of each key in pixels: near the mean of its neighbours, without overlaps."""
    step = _HEIGHT + _BELOW
    tops = {key: number * step for layer in layers for number, key in enumerate(layer)}
    for sweep in range(_SWEEPS):
        near = _neighbours(links, sweep % 2)
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wished = [mean([tops[one] for one in near.get(key, [key])]) for key in layer]
            placed = list[float]()
            for one in wished:
                placed.append(max(one, placed[-1] + step) if placed else one)
            shift = mean(a - b for a, b in zip(placed, wished, strict=True))
            tops |= {key: one - shift for key, one in zip(layer, placed, strict=True)}
    first = _MARGIN + _HEIGHT / 2 - min(tops.values(), default=0)
    return {key: one + first for key, one in tops.items()}


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """A path through the points that is level at each of them."""
    text = "M{:.1f},{:.1f}".format(*points[0])
    for (x, y), (to_x, to_y) in pairwise(points):
        half = (x + to_x) / 2
        text += f" C{half:.1f},{y:.1f} {half:.1f},{to_y:.1f} {to_x:.1f},{to_y:.1f}"
    return text
