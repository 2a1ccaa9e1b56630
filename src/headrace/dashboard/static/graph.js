"use strict";
// The graph: laid out by dagre from left to right, drawn as SVG in a box that scrolls.

const SVG = "http://www.w3.org/2000/svg";
const box = document.getElementById("graph");
const BIG = { width: 216, height: 84, fit: 0.7 }, SMALL = { width: 176, height: 46, fit: 0.8 };
const COMPACT_FROM = 36; // from so many nodes on, a node has two lines
let scale = null, size = { width: 1, height: 1 }, shape = "";

function make(name, attributes = {}, text = null) {
  const one = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) one.setAttribute(key, value);
  if (text !== null) one.textContent = text;
  return one;
}

const count = (value) => value === null ? null : value >= 1e6 ? `${(value / 1e6).toFixed(1)} M` : value.toLocaleString("en");
const short = (text, most) => text.length <= most ? text : `${text.slice(0, most - 1)}…`;
const secs = (value) => value < 10 ? `${value.toFixed(1)} s` : value < 120 ? `${Math.round(value)} s` : value < 7200 ? `${Math.round(value / 60)} min` : `${Math.round(value / 3600)} h`;

function figures(node) {
  const first = [], second = [];
  if (node.rows !== null) first.push(`${count(node.rows)} rows`);
  if (node.rate) first.push(`${count(Math.round(node.rate))}/s`);
  if (node.lag !== null) second.push(`lag ${count(node.lag)}`);
  if (node.latency_s !== null) second.push(secs(node.latency_s));
  return [first.join("  ·  "), second.join("  ·  ")];
}

function describe(node) {
  const [first, second] = figures(node);
  const rejected = node.rejected ? `${count(node.rejected)} failed rows` : "";
  return [node.label, node.kind, node.state, first, second, rejected, ...node.changes, ...(node.columns || [])].filter(Boolean).join(", ");
}

const sizeOf = (node, form) => node.kind === "source" ? { width: form.width, height: 46 } : { width: form.width, height: form.height };

function drawNode(node, at, form) {
  const top = node.link ? make("a", { href: node.link }) : make("g");
  const { width, height } = sizeOf(node, form), compact = form === SMALL || node.kind === "source";
  top.setAttribute("class", `node ${node.tone} kind-${node.kind.split(" ")[0]}${node.sign ? " planned" : ""}${node.columns && !node.columns.length ? " off" : ""}`);
  top.setAttribute("transform", `translate(${at.x - width / 2} ${at.y - height / 2})`);
  top.setAttribute("data-id", node.id);
  top.append(make("title", {}, describe(node)), make("rect", { class: "box", width, height, rx: node.kind === "source" ? height / 2 : 8 }));
  const left = node.kind === "source" ? 26 : 14;
  top.append(make("circle", { class: "dot", cx: left + 4, cy: 19, r: 4.5 }));
  top.append(make("text", { class: "name", x: left + 16, y: 24 }, short(node.label, compact ? 18 : 22)));
  // On the path of a column, its columns are shown in place of figures.
  const [first, second] = node.columns?.length ? [short(node.columns.join(", "), 26), ""] : figures(node);
  const state = node.state || node.kind;
  if (compact) {
    top.append(make("text", { class: "fact", x: left + 16, y: 39 }, short([first || state, node.lag ? second : ""].filter(Boolean).join(" · "), 24)));
  } else {
    top.append(make("text", { class: "fact", x: left + 16, y: 42 }, short(node.kind === "source" ? "source" : `${node.kind} · ${state}`, 28)));
    if (first) top.append(make("text", { class: "fact strong", x: left + 16, y: 58 }, first));
    if (second) top.append(make("text", { class: "fact", x: left + 16, y: 74 }, second));
  }
  if (node.rejected) {
    const text = `${count(node.rejected)} failed`, wide = 7 * text.length + 14;
    top.append(make("rect", { class: "badge", x: width - wide + 6, y: -9, width: wide, height: 19, rx: 9.5 }), make("text", { class: "badge-text", x: width - wide / 2 + 6, y: 4.5, "text-anchor": "middle" }, text));
  }
  if (node.sign) top.append(make("circle", { class: "sign", cx: 0, cy: 0, r: 10 }), make("text", { class: "sign-text", x: 0, y: 5, "text-anchor": "middle" }, node.sign));
  return top;
}

// From the right side of a node to the left side of the next, level at both ends.
function path(from, middle, to) {
  const points = [{ x: from.x + from.width / 2, y: from.y }, ...middle, { x: to.x - to.width / 2, y: to.y }];
  return points.slice(1).reduce((text, next, i) => {
    const half = (next.x - points[i].x) / 2;
    return `${text} C${points[i].x + half},${points[i].y} ${next.x - half},${next.y} ${next.x},${next.y}`;
  }, `M${points[0].x},${points[0].y}`);
}

function draw(data) {
  const form = data.nodes.length >= COMPACT_FROM ? SMALL : BIG;
  const layout = new dagre.graphlib.Graph({ directed: true }).setGraph({ rankdir: "LR", nodesep: form === SMALL ? 14 : 26, ranksep: form === SMALL ? 56 : 72, marginx: 18, marginy: 18 }).setDefaultEdgeLabel(() => ({}));
  for (const node of data.nodes) layout.setNode(node.id, sizeOf(node, form));
  for (const [from, to] of data.edges) layout.setEdge(from, to);
  dagre.layout(layout);
  size = { width: layout.graph().width || 1, height: layout.graph().height || 1, fit: form.fit };
  const onPath = new Set((data.path || []).map((one) => one.join("\n")));
  const flowing = new Set(data.nodes.filter((one) => one.flows).map((one) => one.id));
  const svg = make("svg", { viewBox: `0 0 ${size.width} ${size.height}`, role: "group", "aria-label": "Datasets" });
  for (const edge of layout.edges()) {
    svg.append(make("path", { class: `edge${onPath.has(`${edge.v}\n${edge.w}`) ? " on" : flowing.has(edge.w) ? " flowing" : ""}`, d: path(layout.node(edge.v), layout.edge(edge).points.slice(1, -1).filter((_, i, all) => all.length > 1), layout.node(edge.w)) }));
  }
  for (const node of data.nodes) svg.append(drawNode(node, layout.node(node.id), form));
  const { scrollLeft, scrollTop } = box;
  const focused = document.activeElement?.dataset?.id;
  box.replaceChildren(svg);
  zoom(scale);
  box.scrollTo(scrollLeft, scrollTop);
  if (focused) svg.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus();
  filter();
}

function zoom(wanted) {
  const svg = box.querySelector("svg");
  if (!svg) return;
  const whole = Math.min((box.clientWidth - 4) / size.width, 1.1);
  // Without a choice the graph fits, as long as its texts can be read.
  const used = wanted ?? Math.max(whole, size.fit);
  scale = wanted;
  svg.setAttribute("width", Math.round(size.width * used));
  svg.setAttribute("height", Math.round(size.height * used));
  box.dataset.scale = used;
}

function filter() {
  const text = (document.getElementById("graph-filter")?.value || "").toLowerCase();
  let first = null;
  for (const node of box.querySelectorAll(".node")) {
    const matches = !text || node.dataset.id.toLowerCase().includes(text);
    node.classList.toggle("dim", !matches);
    if (text && matches && !first) first = node;
  }
  return first;
}

async function load() {
  const answer = await fetch(box.dataset.source);
  if (!answer.ok) return;
  const data = await answer.json();
  const found = JSON.stringify(data);
  if (found !== shape) { shape = found; draw(data); }
}

if (box) {
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => {
      const now = Number(box.dataset.scale) || 1;
      zoom({ in: Math.min(now * 1.25, 2.5), out: Math.max(now / 1.25, 0.2), fit: Math.min((box.clientWidth - 4) / size.width, 1.1) }[button.dataset.zoom]);
    });
  }
  document.getElementById("graph-filter")?.addEventListener("input", () => {
    filter()?.scrollIntoView({ block: "center", inline: "center" });
  });
  addEventListener("resize", () => zoom(scale));
  document.addEventListener("headrace:changed", load);
  // The pulse ends without an event, when no rows have come in for some time.
  setInterval(load, 15000);
  load();
}
