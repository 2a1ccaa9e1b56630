"use strict";
// The timeline of an update: a line for each flow, a bar for each batch.

const NS = "http://www.w3.org/2000/svg";
const ROW = 30, HEAD = 26;

function node(name, attributes, text) {
  const one = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
  if (text !== undefined) one.textContent = text;
  return one;
}

function step(ms) {
  const wanted = ms / 6;
  return [100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 12e5, 36e5, 72e5, 216e5, 864e5].find((one) => one >= wanted) || 864e5;
}

const label = (ms) => ms >= 36e5 ? `${+(ms / 36e5).toFixed(1)} h` : ms >= 6e4 ? `${+(ms / 6e4).toFixed(1)} min` : `${+(ms / 1e3).toFixed(1)} s`;

function drawGantt(host, data) {
  const side = host.clientWidth < 560 ? 92 : 170;
  const width = Math.max(host.clientWidth - 4, 300), inner = width - side - 16;
  const most = Math.max(data.ms, ...data.bars.map((one) => one.from + one.ms), 1);
  const x = (ms) => side + ms / most * inner;
  const height = HEAD + ROW * Math.max(data.flows.length, 1) + 6;
  const svg = node("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Batches by flow" });
  for (let at = 0, each = step(most * 560 / Math.max(inner, 200)); at <= most; at += each) {
    svg.append(node("line", { class: "grid", x1: x(at), x2: x(at), y1: HEAD - 6, y2: height }), node("text", { class: "tick", x: x(at), y: 14, "text-anchor": at === 0 ? "start" : "middle" }, label(at)));
  }
  data.flows.forEach((flow, i) => {
    const y = HEAD + i * ROW;
    const name = data.names[i], room = side < 100 ? 11 : 22;
    svg.append(node("text", { class: "flow", x: 8, y: y + 19 }, name.length > room ? `${name.slice(0, room - 1)}…` : name), node("line", { class: "base", x1: side, x2: width - 16, y1: y + ROW - 0.5, y2: y + ROW - 0.5 }));
  });
  for (const one of data.bars) {
    const y = HEAD + data.flows.indexOf(one.flow) * ROW;
    const what = one.batch === null ? "refresh" : `batch ${one.batch}`;
    const text = `${one.flow}, ${what}: ${one.rows.toLocaleString("en")} rows${one.rejected ? `, ${one.rejected.toLocaleString("en")} failed` : ""}, ${label(one.ms)}, v${one.version}`;
    const link = node("a", { href: `${host.dataset.commit}?name=${encodeURIComponent(one.dataset)}&version=${one.version}`, "aria-label": text });
    const bar = node("rect", { class: `bar-of${one.rejected ? " late" : ""}`, x: x(one.from), y: y + 6, width: Math.max(x(one.from + one.ms) - x(one.from), 2), height: ROW - 12, rx: 3 });
    link.append(bar); bar.append(node("title", {}, text)); svg.append(link);
  }
  host.replaceChildren(svg);
}

for (const host of document.querySelectorAll("[data-gantt]")) {
  let last = null;
  const load = async () => {
    const answer = await fetch(host.dataset.gantt);
    if (!answer.ok) return;
    const text = await answer.text();
    if (text !== last) { last = text; drawGantt(host, JSON.parse(text)); }
  };
  addEventListener("resize", () => last && drawGantt(host, JSON.parse(last)));
  document.addEventListener("headrace:changed", load);
  load();
}
