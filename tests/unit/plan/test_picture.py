"""The graph as a picture: where boxes stand, and which text they have."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

from headrace.plan.drawing import Graph, Node, draw_dot
from headrace.plan.picture import draw_svg

NODES = (
    ("k", "kafka <orders> & more", "source"),
    ("late", 'files "x"', "source"),
    ("a", "bronze", "table"),
    ("b", "silver", "table"),
    ("c", "gold (view)", "view"),
    ("d", "half (temporary)", "temporary"),
    ("e", "sent (sink)", "sink"),
)
LABELS = {key: label for key, label, _ in NODES}
EDGES = (("k", "a"), ("a", "b"), ("a", "d"), ("b", "c"), ("d", "c"), ("c", "e"), ("a", "e"), ("late", "c"))
GRAPH = Graph(tuple(Node(*one) for one in NODES), EDGES)
_SVG = "{http://www.w3.org/2000/svg}"


def boxes(graph: Graph) -> dict[str, tuple[float, float, float, float]]:
    """The left, right, top and bottom of each box by its text."""
    picture = ElementTree.fromstring(draw_svg(graph))
    found = {}
    for group in picture.iter(f"{_SVG}g"):
        box, text = group.find(f"{_SVG}rect"), group.find(f"{_SVG}text")
        assert box is not None and text is not None and text.text is not None
        x, y, wide, high = (float(box.get(name, "")) for name in ("x", "y", "width", "height"))
        assert len(text.text) * 7 < wide
        assert x + wide <= float(picture.get("width", "")) and y + high <= float(picture.get("height", ""))
        found[text.text] = x, x + wide, y, y + high
    return found


def test_readers_stand_to_the_right_and_no_box_covers_another() -> None:
    found = boxes(GRAPH)
    assert {*found} == {*LABELS.values()}
    for start, end in EDGES:
        assert found[LABELS[start]][1] < found[LABELS[end]][0], (start, end)
    for a, b in itertools.combinations(found.values(), 2):
        assert a[1] < b[0] or b[1] < a[0] or a[3] < b[2] or b[3] < a[2]
    # A source stands beside its reader.
    assert found['files "x"'][0] > found["bronze"][0]


def test_each_read_is_an_arrow_between_the_sides_of_two_boxes() -> None:
    found = boxes(GRAPH)
    path = r'<path d="M([-.\d]+),([-.\d]+) [^"]* ([-.\d]+),([-.\d]+)" marker-end'
    arrows = [tuple(map(float, one)) for one in re.findall(path, draw_svg(GRAPH))]
    assert len(arrows) == len(EDGES)
    for (start, end), (x, y, to_x, to_y) in zip(EDGES, arrows, strict=True):
        _, right, top, bottom = found[LABELS[start]]
        left, _, to_top, to_bottom = found[LABELS[end]]
        assert abs(x - right) < 0.2 and top < y < bottom
        assert abs(to_x - left) < 0.2 and to_top < to_y < to_bottom


def test_a_graph_that_needs_no_crossing_has_none() -> None:
    keys = [f"{side}{number}" for number in (2, 0, 1) for side in "ab"]
    edges = [(f"a{number}", f"b{2 - number}") for number in range(3)]
    found = boxes(Graph(tuple(Node(key, key, "table") for key in keys), tuple(edges)))
    tops = sorted((found[start][2], found[end][2]) for start, end in edges)
    assert [end for _, end in tops] == sorted(end for _, end in tops)


def test_dot() -> None:
    lines = draw_dot(GRAPH).splitlines()
    assert lines[0] == "digraph {" and lines[-1] == "}"
    assert '  n0 [label="kafka <orders> & more", shape=oval]' in lines
    assert r'  n1 [label="files \"x\"", shape=oval]' in lines
    assert "  n0 -> n2" in lines and len(lines) == 3 + len(NODES) + len(EDGES)
