"""A graph as text: lines from left to right, Mermaid, or DOT of Graphviz; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

GraphForm = Literal["svg", "mermaid", "dot"]


@dataclass(frozen=True)
class Node:
    key: str
    label: str
    kind: str  # ``source``, ``table``, ``sink``, ``view`` or ``temporary``; each has its shape


@dataclass(frozen=True)
class Graph:
    """Nodes in drawing order, and edges from a source to its reader."""

    nodes: tuple[Node, ...]
    edges: tuple[tuple[str, str], ...]

    def children(self, key: str) -> list[str]:
        return [end for start, end in self.edges if start == key]

    def roots(self) -> list[str]:
        ends = {end for _, end in self.edges}
        return [node.key for node in self.nodes if node.key not in ends]


def draw_text(graph: Graph) -> list[str]:
    """The graph as text; a node with several sources is drawn once with its readers, then only named."""
    labels = {node.key: node.label for node in graph.nodes}
    drawn: set[str] = set()
    lines: list[str] = []
    for root in graph.roots():
        lines += _block(graph, labels, root, drawn)
    return lines


def _block(graph: Graph, labels: Mapping[str, str], key: str, drawn: set[str]) -> list[str]:
    label = labels[key]
    children = graph.children(key)
    if key in drawn:
        return [f"{label} (above)" if children else label]
    drawn.add(key)
    blocks = [_block(graph, labels, child, drawn) for child in children]
    if not blocks:
        return [label]
    if len(blocks) == 1:
        return _joined(f"{label} ─▶ ", " " * (len(label) + 4), blocks[0])
    lines = _joined(f"{label} ─┬─▶ ", " " * (len(label) + 2) + "│   ", blocks[0])
    for block in blocks[1:-1]:
        lines += _joined(" " * (len(label) + 2) + "├─▶ ", " " * (len(label) + 2) + "│   ", block)
    return lines + _joined(" " * (len(label) + 2) + "└─▶ ", " " * (len(label) + 6), blocks[-1])


def _joined(first: str, below: str, block: Sequence[str]) -> list[str]:
    return [first + block[0], *(below + line for line in block[1:])]


_SHAPES = {
    "source": ("([", "])"),
    "table": ("[(", ")]"),
    "sink": ("[[", "]]"),
    "view": ("[/", "/]"),
    "temporary": ("[", "]"),
}


def draw_mermaid(graph: Graph) -> str:
    ids = {node.key: f"n{index}" for index, node in enumerate(graph.nodes)}
    lines = ["flowchart LR"]
    for node in graph.nodes:
        opening, closing = _SHAPES[node.kind]
        text = node.label.replace('"', "#quot;")
        lines.append(f'  {ids[node.key]}{opening}"{text}"{closing}')
    lines += [f"  {ids[start]} --> {ids[end]}" for start, end in graph.edges]
    return "\n".join(lines)


_DOT_SHAPES = {
    "source": "shape=oval",
    "table": "shape=cylinder",
    "sink": "shape=box, peripheries=2",
    "view": "shape=parallelogram",
    "temporary": "shape=box, style=dashed",
}


def draw_dot(graph: Graph) -> str:
    ids = {node.key: f"n{index}" for index, node in enumerate(graph.nodes)}
    lines = ["digraph {", "  rankdir=LR"]
    for node in graph.nodes:
        text = node.label.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'  {ids[node.key]} [label="{text}", {_DOT_SHAPES[node.kind]}]')
    return "\n".join([*lines, *(f"  {ids[start]} -> {ids[end]}" for start, end in graph.edges), "}"])
