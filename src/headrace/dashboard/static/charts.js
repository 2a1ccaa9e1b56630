"use strict";
// The curves of a dataset's batches, drawn by uPlot.

const place = document.querySelector("[data-charts]");
const charts = new Map();
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const PALETTE = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"];
const resolve = (name) => { const probe = document.createElement("i"); probe.className = `probe ${name.slice(2)}`; document.body.append(probe); const found = getComputedStyle(probe).color; probe.remove(); return found; };
const compact = (v) => v === null ? "–" : Math.abs(v) >= 1e6 ? `${+(v / 1e6).toFixed(1)} M` : Math.abs(v) >= 1e4 ? `${+(v / 1e3).toFixed(1)} k` : `${+v.toFixed(2)}`;

function clock(at, step) {
  const text = new Date(at * 1000).toLocaleString("sv-SE");
  return step >= 86400 ? text.slice(5, 10) : step >= 60 ? text.slice(11, 16) : text.slice(11, 19);
}

function options(host, series, bands) {
  const text = resolve("--muted"), grid = resolve("--line");
  const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return {
    width: Math.max(host.clientWidth - 24, 220), height: 170, bands, legend: { live: true },
    cursor: { y: false, points: { size: 6 } },
    // A single batch gets a minute on each side; uPlot would draw years.
    scales: { x: { range: (u, min, max) => u.data[0].length < 2 ? [min - 60, min + 60] : [min, max] }, y: { range: (u, min, max) => [0, max > 0 ? max * 1.08 : 1] } },
    axes: [{ ...axis, space: 70, values: (u, splits, i, space, step) => splits.map((at) => clock(at, step)) }, { ...axis, size: 52, values: (u, vs) => vs.map(compact) }],
    series: [{ value: (u, v) => v === null ? "" : new Date(v * 1000).toLocaleString("sv-SE") }, ...series],
    hooks: { ready: [(u) => u.over.addEventListener("click", () => open(u))] },
  };
}

let versions = [];
function open(u) {
  const version = versions[u.cursor.idx];
  if (version !== undefined && version !== null) location.href = `${place.dataset.commit}&version=${version}`;
}

function line(label, name, extra = {}) {
  const stroke = resolve(name);
  return { label, stroke, width: 1.6, points: { show: (u) => u.data[0].length < 40, size: 5, fill: stroke }, value: (u, v) => compact(v), ...extra };
}

function put(name, data, series, bands = []) {
  const host = place.querySelector(`[data-chart="${name}"]`);
  const has = data.slice(1).some((one) => one.some((value) => value !== null));
  charts.get(name)?.destroy();
  charts.delete(name);
  host.classList.toggle("without", !has);
  if (has) charts.set(name, new uPlot(options(host, series, bands), data, host));
}

function draw(data) {
  versions = data.version;
  const note = document.querySelector("[data-chart-note]");
  if (note) note.textContent = data.at.length ? `the newest ${data.at.length}; a click opens the commit` : "";
  put("rows", [data.at, data.rows, data.rejected], [line("rows", "--c1", { fill: resolve("--c1-soft") }), line("failed", "--c4")]);
  put("lag", [data.at, data.lag], [line("lag", "--c1", { fill: resolve("--c1-soft") })]);
  put("latency", [data.at, data.latency_s], [line("latency", "--c1", { fill: resolve("--c1-soft") })]);
  // Steps are stacked: each curve is the sum of those below it.
  const names = Object.keys(data.steps).filter((name) => data.steps[name].some((one) => one));
  if (names.length) {
    const sum = data.at.map(() => 0);
    const stacked = names.map((name) => data.steps[name].map((one, i) => one === null && !sum[i] ? null : (sum[i] += (one || 0) / 1000)));
    const series = names.map((name, i) => line(name, PALETTE[i % PALETTE.length], { fill: resolve(PALETTE[i % PALETTE.length]), width: 0, points: { show: (u) => u.data[0].length < 2, size: 5 }, value: (u, v, s, at) => at === null ? "–" : compact((data.steps[name][at] || 0) / 1000) }));
    put("steps", [data.at, ...stacked.slice().reverse()], series.slice().reverse(), []);
  } else {
    put("steps", [data.at, data.duration_ms.map((one) => one === null ? null : one / 1000)], [line("duration", "--c1", { fill: resolve("--c1-soft") })]);
  }
}

let last = null;
async function load() {
  const answer = await fetch(place.dataset.charts);
  if (!answer.ok) return;
  const text = await answer.text();
  if (text !== last) { last = text; draw(JSON.parse(text)); }
}

if (place) {
  let waiting = null;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => last && draw(JSON.parse(last)), 150); });
  document.addEventListener("headrace:changed", load);
  document.addEventListener("headrace:theme", () => last && draw(JSON.parse(last)));
  load();
}
