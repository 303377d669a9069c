// The page: follows the server's events, and draws at most once a frame. It shows and heals a lost connection.

import { byId, element, newest, seconds, setText, shownTo, state, takeChanges, takeSnapshot } from "./model.js";
import { drawBins, drawBinsFrame, flip, redrawBins } from "./bins.js";
import { clearCharts, drawChartCursor, drawCharts } from "./charts.js";
import { drawCursor, drawTimeline, timeAt } from "./timeline.js";
import { drawHead, drawStill, drawWorkers } from "./workers.js";
import { askControl, button } from "./controls.js";

const WINDOWS = [[60, "1 min"], [120, "2 min"], [900, "15 min"], [3600, "1 h"], [21600, "6 h"]];
const QUIET_MS = 15000; // without a message: the connection is opened anew
const RETRY_MS = 2000;

let source = null;
let heard = 0; // when the last message came, in milliseconds of this page's clock
let isLost = false;
let isEnded = false;
let isDue = false;

// The connection ------------------------------------------------------------------------

function open() {
  source?.close();
  heard = Date.now();
  const opened = new EventSource("events");
  source = opened;
  opened.addEventListener("snapshot", (event) => {
    takeSnapshot(JSON.parse(event.data));
    redrawBins();
    arrived();
    askControl().then(due, () => {}); // without an answer, the page only shows
  });
  opened.addEventListener("changes", (event) => {
    if (state.document === null) return;
    flip(takeChanges(JSON.parse(event.data)));
    arrived();
  });
  opened.addEventListener("ended", (event) => finish(JSON.parse(event.data).text));
  opened.onerror = () => {
    if (source !== opened || isEnded) return;
    lose();
    if (opened.readyState === EventSource.CLOSED) setTimeout(() => { if (source === opened) open(); }, RETRY_MS);
  };
}

function arrived() {
  heard = Date.now();
  isLost = false;
  document.body.dataset.lost = "false";
  byId("lost").hidden = true;
  setText(byId("connection"), "Live");
  document.body.dataset.ready = "true";
  if (state.document.status.state === "ended") finish("The job has ended.");
  due();
}

function finish(text) {
  isEnded = true;
  source?.close();
  setText(byId("connection"), text);
}

function lose() {
  if (isLost) return;
  isLost = true;
  document.body.dataset.lost = "true";
  setText(byId("connection"), "Disconnected");
  byId("lost").hidden = false;
  tellLost();
}

function tellLost() {
  setText(byId("lost"), `Connection lost ${seconds((Date.now() - heard) / 1000)} ago. The page shows what it last
    received, and reconnects by itself.`.replace(/\s+/g, " "));
}

setInterval(() => {
  if (isEnded || document.hidden) return;
  if (isLost) tellLost();
  if (Date.now() - heard > QUIET_MS) {
    const last = heard;
    lose();
    open();
    if (Date.now() - last < 10 * QUIET_MS) heard = Date.now();
  }
}, 1000);

document.addEventListener("visibilitychange", () => {
  if (isEnded) return;
  if (document.hidden) {
    source?.close();
    source = null;
    setText(byId("connection"), "Paused while hidden");
  } else if (source === null) open();
});

// Drawing -------------------------------------------------------------------------------

// Draw everything soon. What waits already keeps its turn.
function due() {
  waiting.push(...PARTS.filter((part) => !waiting.includes(part)));
  request();
}

// One part after the other, for as long as a frame has time: so no frame takes long, whatever has changed.
const PARTS = [
  drawBinsFrame, drawHead, drawStill, drawTimeline, () => drawCharts(moveCursor), drawWorkers,
];
const FRAME_MS = 12;
let waiting = []; // parts that are still to be drawn

function draw() {
  isDue = false;
  if (!state.document) return;
  const begun = performance.now();
  let again = drawBins();
  while (waiting.length && performance.now() - begun < FRAME_MS) waiting.shift()();
  again ||= waiting.length > 0;
  document.body.dataset.frame = (performance.now() - begun).toFixed(1);
  if (again) request();
}

function request() {
  if (isDue) return;
  isDue = true;
  requestAnimationFrame(draw);
}

function moveCursor(time) {
  if (time === state.cursor) return;
  state.cursor = time;
  drawCursor();
  drawChartCursor();
  drawBins();
}

function show(span, to) {
  state.span = span;
  state.to = to;
  byId("follow").setAttribute("aria-pressed", String(to === null));
  for (const each of byId("windows").children) each.setAttribute("aria-pressed", String(Number(each.dataset.span) === span));
  due();
}

byId("windows").append(...WINDOWS.map(([span, name]) => {
  const made = button(name, () => show(span, state.to));
  made.dataset.span = span;
  return made;
}));
byId("follow").addEventListener("click", () => show(state.span, state.to === null ? newest() : null));
addEventListener("megaflow-newest", () => show(120, null));
addEventListener("megaflow-zoom", (event) => show(Math.max(5, event.detail.to - event.detail.from), event.detail.to));
byId("timeline").addEventListener("pointermove", (event) => moveCursor(timeAt(event)));
byId("timeline").addEventListener("pointerleave", () => moveCursor(null));
byId("timeline").addEventListener("wheel", (event) => {
  if (!event.ctrlKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
  event.preventDefault();
  const to = shownTo() + (event.deltaX / 800) * state.span;
  show(Math.min(21600, Math.max(5, state.span * (event.ctrlKey ? 1 + event.deltaY / 400 : 1))), to >= newest() ? null : to);
}, { passive: false });
for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", due);

// Theme ---------------------------------------------------------------------------------

const THEMES = ["", "light", "dark"];

function setTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  byId("theme").textContent = `Theme: ${name || "system"}`;
  clearCharts();
  redrawBins();
  due();
}

byId("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "") + 1) % 3];
  localStorage.setItem("megaflow-theme", next);
  setTheme(next);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(document.documentElement.dataset.theme ?? ""));
addEventListener("resize", due);
setTheme(localStorage.getItem("megaflow-theme") ?? "");
show(state.span, null);
open();
