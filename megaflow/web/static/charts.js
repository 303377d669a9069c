// The charts: uPlot draws them, all with the time that the timeline shows and with one cursor.

import {
  byId, bytes, clock, compact, count, element, isNumber, milliseconds, newest, percent, seconds, setText, showTable,
  shownFrom, shownTo, state, workerIds,
} from "./model.js";
import { colourOf, cssColour } from "./palette.js";

const ORDER = ["rate", "p50", "p99", "max", "lag", "queue", "wait", "memory"]; // as in megaflow/web/curves.py
const WORKERS_MAX = 24; // lines of single workers
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);
const CHARTS = [
  { title: "Records per second", unit: (value) => `${compact(value)}/s`, series: [["rate", "all", "--text"]], workers: true },
  { title: "Latency", unit: milliseconds, series: [["p50", "p50", "--one"], ["p99", "p99", "--two"], ["max", "max", "--three"]] },
  { title: "Watermark lag", unit: seconds, series: [["lag", "lag", "--one"]] },
  { title: "Lines in the queue or being processed", unit: count, series: [["queue", "lines", "--two"]] },
  { title: "Time that sources are held back", unit: percent, series: [["wait", "worst worker", "--three"]] },
  { title: "Memory", unit: bytes, series: [["memory", "all", "--one"]], steps: POWERS },
];
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];

let made = []; // {chart, plot, head, keys}
let moveCursor = () => {};
let drawn = "";

// Return the times and points that charts show: coarse ones, then fine ones.
function points() {
  const fine = Object.keys(state.document.fine).map(Number).sort((a, b) => a - b);
  const first = fine[0] ?? Infinity;
  const coarse = Object.keys(state.document.coarse).map(Number).filter((time) => time < first).sort((a, b) => a - b);
  const margin = 30;
  const [from, to] = [shownFrom() - margin, shownTo() + margin];
  const times = [...coarse, ...fine].filter((time) => time >= from && time <= to);
  return [times, times.map((time) => state.document.fine[time] ?? state.document.coarse[time])];
}

function busiest() {
  const workers = state.document.workers;
  const ids = workerIds();
  if (ids.length <= WORKERS_MAX) return ids;
  const heavy = ids.sort((a, b) => (workers[b].rate ?? 0) - (workers[a].rate ?? 0)).slice(0, WORKERS_MAX);
  return heavy.sort((a, b) => a - b);
}

function make(chart, ids) {
  const head = element("span", { class: "now" });
  const target = element("div", { class: "plot", role: "img" });
  byId("charts").append(element("article", { class: "chart card" }, element("h3", {}, chart.title, head), target));
  const lines = chart.workers ? ids.map((id) => ({
    label: `worker ${id}`, stroke: colourOf(id), width: 1.25, dash: DASHES[Math.floor(id / 8) % 4], points: { show: false },
  })) : [];
  const totals = chart.series.map(([, label, colour], place) => ({
    label, stroke: cssColour(colour), width: chart.workers ? 2 : 1.75, dash: chart.series.length > 1 ? DASHES[place] : [],
    points: { show: false },
    fill: chart.series.length === 1 && !chart.workers ? `${cssColour(colour)}22` : undefined,
  }));
  const axis = {
    stroke: cssColour("--muted"), font: "11px ui-sans-serif, system-ui, sans-serif", ticks: { show: false },
    grid: { stroke: cssColour("--line"), width: 1 },
  };
  const plot = new globalThis.uPlot({
    width: Math.max(160, target.clientWidth), height: 148, legend: { show: false }, padding: [10, 24, 0, 0],
    scales: {
      x: { time: true, range: () => [shownFrom(), shownTo()] },
      y: { range: (self, least, most) => [0, most > 0 ? most * 1.08 : 1] },
    },
    axes: [
      { ...axis, size: 26, space: 70, values: (self, ticks) => ticks.map(
        (time) => (state.span <= 900 ? clock(time) : clock(time).slice(0, 5))) },
      { ...axis, size: 66, space: 30, ...(chart.steps ? { incrs: chart.steps } : {}), values: (self, ticks) => ticks.map((value) => (value ? chart.unit(value) : "0")) },
    ],
    series: [{}, ...totals, ...lines],
    cursor: {
      y: false, points: { size: 6 }, drag: { x: true, y: false, setScale: false },
      bind: { dblclick: () => () => { globalThis.dispatchEvent(new Event("megaflow-newest")); return null; } },
    },
    hooks: {
      setCursor: [(self) => {
        if (self.cursor.event) moveCursor(self.cursor.left < 0 ? null : self.posToVal(self.cursor.left, "x"));
      }],
      setSelect: [(self) => {
        if (self.select.width < 8) return;
        const from = self.posToVal(self.select.left, "x");
        const to = self.posToVal(self.select.left + self.select.width, "x");
        self.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        globalThis.dispatchEvent(new CustomEvent("megaflow-zoom", { detail: { from, to } }));
      }],
    },
  }, [[], ...totals.map(() => []), ...lines.map(() => [])], target);
  plot.over.addEventListener("pointerleave", () => moveCursor(null));
  made.push({ chart, plot, head, target, ids: chart.workers ? ids : [] });
}

export function drawCharts(onCursor) {
  moveCursor = onCursor;
  const ids = busiest();
  const now = ids.join();
  if (now !== drawn || !made.length) {
    drawn = now;
    clearCharts();
    for (const chart of CHARTS) make(chart, ids);
  }
  const [times, found] = points();
  for (const { chart, plot, target, ids: workers } of made) {
    const totals = chart.series.map(([name]) => found.map((point) => point.values[ORDER.indexOf(name)] ?? null));
    const lines = workers.map((id) => found.map((point) => point.rates[id] ?? null));
    const width = Math.max(160, target.clientWidth);
    if (Math.abs(plot.width - width) > 1) plot.setSize({ width, height: 148 });
    plot.setData([times, ...totals, ...lines]);
  }
  drawChartCursor();
  const details = byId("charts-table");
  if (details.open) fillTable(details.querySelector("div"), times, found);
}

export function clearCharts() {
  for (const { plot } of made) plot.destroy();
  made = [];
  byId("charts").replaceChildren();
}

// Show the cursor of all charts at the shared time, and the values there.
export function drawChartCursor() {
  for (const { chart, plot, head, target } of made) {
    const time = state.cursor;
    const isShown = time !== null && time >= shownFrom() && time <= shownTo();
    if (!plot.cursor.event || plot.cursor.left < 0 || !target.matches(":hover")) {
      plot.setCursor({ left: isShown ? plot.valToPos(time, "x") : -10, top: isShown ? 10 : -10 }, false);
    }
    const times = plot.data[0];
    let place = times.length - 1;
    if (isShown) while (place > 0 && times[place] > time) place -= 1;
    const values = chart.series.map(([, label], number) => [label, plot.data[number + 1][place]]);
    const known = values.some(([, value]) => isNumber(value));
    const one = values.length === 1;
    setText(head, !known ? "N/A" : values.map(([label, value]) => `${one ? "" : `${label} `}${chart.unit(value)}`).join("  "));
    const label = `${chart.title}: ${head.textContent}. The table below has the values.`;
    if (target.getAttribute("aria-label") !== label) target.setAttribute("aria-label", label);
  }
}

let filled = 0;

function fillTable(target, times, found) {
  if (filled === newest()) return;
  filled = newest();
  const rows = times.map((time, place) => [time, found[place].values]).slice(-60).reverse().map(([time, values]) => {
    const value = (name) => values[ORDER.indexOf(name)];
    return [clock(time), `${compact(value("rate"))}/s`, milliseconds(value("p50")), milliseconds(value("p99")),
      milliseconds(value("max")), seconds(value("lag")), count(value("queue")), percent(value("wait")),
      bytes(value("memory"))].map((text) => (text === "N/A/s" ? "N/A" : text));
  });
  const head = ["Time", "Records", "p50", "p99", "Max", "Watermark lag", "Lines", "Held back", "Memory"];
  showTable(target, head, rows, "Values of the charts, newest first");
}
