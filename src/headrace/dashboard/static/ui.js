"use strict";
// Times in the viewer's zone, live regions, search, keys, and buttons that copy commands.

const AGO = [[86400 * 2, 86400, "d"], [7200, 3600, "h"], [120, 60, "min"], [0, 1, "s"]];

function ago(at) {
  const seconds = Math.max((Date.now() - at) / 1000, 0);
  const [, unit, name] = AGO.find(([least]) => seconds >= least);
  return `${Math.round(seconds / unit)} ${name} ago`;
}

const CLOCK = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false };

function writeTimes(root = document) {
  for (const one of root.querySelectorAll("time[datetime]")) {
    const at = new Date(one.dateTime);
    const text = one.dataset.form === "ago" ? ago(at) : at.toLocaleString("sv-SE", CLOCK);
    if (one.textContent !== text) one.textContent = text;
  }
}

// A live region is replaced by its newer form only if that differs; what a person has opened or typed stays.
let refreshing = false, again = false;
async function refresh() {
  if (refreshing) { again = true; return; }
  refreshing = true;
  try {
    const answer = await fetch(location.href, { headers: { "x-live": "1" } });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const old of document.querySelectorAll("[data-live][id]")) {
      const next = page.getElementById(old.id);
      if (!next || old.dataset.html === next.innerHTML && old.hidden === next.hidden) continue;
      const focus = document.activeElement;
      const held = old.contains(focus) && focus.getAttribute("href");
      old.dataset.html = next.innerHTML;
      old.hidden = next.hidden;
      old.innerHTML = next.innerHTML;
      if (held) [...old.querySelectorAll("a[href]")].find((one) => one.getAttribute("href") === held)?.focus();
      writeTimes(old);
      if (window.htmx) htmx.process(old);
    }
    document.dispatchEvent(new CustomEvent("headrace:changed"));
  } finally {
    refreshing = false;
    if (again) { again = false; setTimeout(refresh, 300); }
  }
}

function follow() {
  const shown = document.querySelector("[data-live-state]");
  const say = (state) => { if (shown) { shown.dataset.liveState = state; shown.lastElementChild.textContent = state; } };
  const stream = new EventSource("/live");
  let known = Number(document.body.dataset.revision);
  stream.addEventListener("open", () => say("live"));
  stream.addEventListener("error", () => say("not connected"));
  stream.addEventListener("changed", (event) => {
    if (Number(event.data) !== known) { known = Number(event.data); refresh(); }
  });
  addEventListener("pagehide", () => stream.close());
}

function setUpSearch() {
  const dialog = document.getElementById("search");
  if (!dialog) return;
  const input = dialog.querySelector("input"), list = dialog.querySelector("ul");
  let names = null;
  const draw = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = (names || []).filter((one) => words.every((word) => one.name.toLowerCase().includes(word)));
    list.replaceChildren(...found.slice(0, 12).map((one) => {
      const item = document.createElement("li"), link = document.createElement("a"), kind = document.createElement("small");
      link.href = one.link; link.textContent = one.name; kind.textContent = one.kind;
      link.append(kind); item.append(link);
      return item;
    }));
    if (!found.length) { const item = document.createElement("li"); item.className = "empty"; item.textContent = names ? "Nothing has this name." : "Reading …"; list.append(item); }
  };
  const open = async () => {
    if (dialog.open) return;
    dialog.showModal(); input.value = ""; draw(); input.focus();
    if (!names) { names = (await (await fetch(`${document.body.dataset.pipeline}/names.json`)).json()).names; draw(); }
  };
  input.addEventListener("input", draw);
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("keydown", (event) => {
    const links = [...list.querySelectorAll("a")], at = links.indexOf(document.activeElement);
    if (event.key === "Enter" && at < 0) links[0]?.click();
    else if (event.key === "ArrowDown") links[Math.min(at + 1, links.length - 1)]?.focus();
    else if (event.key === "ArrowUp") (at > 0 ? links[at - 1] : input).focus();
    else return;
    event.preventDefault();
  });
  document.querySelector("[data-search]")?.addEventListener("click", open);
  return open;
}

const openSearch = setUpSearch();
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea, dialog") || event.ctrlKey || event.metaKey || event.altKey;
  if (typing) return;
  if (event.key === "/" && openSearch) { event.preventDefault(); openSearch(); }
  const pages = { g: "/", u: "/updates", e: "/events", t: "/topics", p: "/proof" };
  const pipeline = document.body.dataset.pipeline;
  if (pipeline && pages[event.key]) location.href = pipeline + pages[event.key];
});

document.addEventListener("click", async (event) => {
  const copy = event.target.closest("[data-copy]");
  if (copy) {
    try { await navigator.clipboard.writeText(copy.dataset.copy); copy.textContent = "Copied"; } catch { copy.textContent = "Select it"; }
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  }
  if (event.target.closest("[data-theme-toggle]")) {
    const root = document.documentElement, isDark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = root.dataset.theme || (isDark ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    localStorage.setItem("headrace-theme", root.dataset.theme);
    document.dispatchEvent(new CustomEvent("headrace:theme"));
  }
});

// An error of a button is shown in its place.
document.addEventListener("htmx:beforeSwap", (event) => {
  if (event.detail.xhr.status >= 400) { event.detail.shouldSwap = true; event.detail.isError = false; }
});
document.addEventListener("htmx:afterSwap", () => writeTimes());
for (const one of document.querySelectorAll("[data-live][id]")) one.dataset.html = one.innerHTML;
writeTimes();
setInterval(writeTimes, 5000);
follow();
