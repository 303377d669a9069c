// The timeline: spans and marks in four lanes. A click pins an entry and shows its account.

import {
  bytes, byId, clock, compact, count, element, newest, seconds, setText, showTable, shownFrom, shownTo, state, table,
} from "./model.js";
import { button, command, copyable } from "./controls.js";

const LANES = [
  ["Moves", ["plan", "step"]],
  ["Workers", ["join", "leave", "ready", "coordinator"]],
  ["Checkpoints", ["checkpoint"]],
  ["Job", ["start", "restart", "waiting", "refused", "stop", "end"]],
];
const NAMES = {
  plan: "Move", step: "Move", join: "Join", leave: "Leave", ready: "Worker ready", coordinator: "Coordinator",
  checkpoint: "Checkpoint", start: "Start", restart: "Restart", waiting: "Waiting", refused: "Refused", stop: "Stop",
  end: "End",
};
const COMMANDS = {
  plan: "move-bins --balance", step: "move-bins --balance", join: "add-workers 1 --balance",
  leave: "remove-workers --id WORKER", checkpoint: "checkpoint", restart: "explain", waiting: "explain", stop: "stop",
};
const LABELS = {
  strategy: "Strategy", planned: "Bins to move", bins: "Bins moved", keys: "Keys", bytes: "State", pause: "Longest pause",
  runner: "Run by", workers: "Workers", coordinator: "Coordinator", processes: "Processes", joined: "Joined",
  address: "Address", reason: "Reason", epoch: "Epoch", names: "Names", seconds: "Duration", restart: "Restart",
};
const FORMATS = { bytes, pause: seconds, seconds, bins: count, keys: count, planned: count };

const box = byId("timeline");
const buttons = new Map(); // number -> its button
let pinned = null;
let shown = null; // the entry of the account
let told = ""; // its values
let current = null; // the entry that Tab reaches

const axis = element("div", { class: "axis", "aria-hidden": "true" });
const lineTime = element("b", {});
const line = element("div", { class: "cursor", "aria-hidden": "true" }, lineTime);
const tracks = LANES.map(() => element("div", { class: "track" }));
box.append(element("div", { class: "lane" }, element("span", {}, ""), axis), ...LANES.map(([name], place) => element(
  "div", { class: "lane" }, element("span", {}, name), tracks[place])), line);

function laneOf(kind) { return Math.max(0, LANES.findIndex(([, kinds]) => kinds.includes(kind))); }

function duration(entry) {
  if (entry.end === undefined) return `under way for ${seconds(Math.max(0, newest() - entry.begin))}`;
  return entry.end > entry.begin ? seconds(entry.end - entry.begin) : "";
}

function text(entry) {
  return [entry.title, clock(entry.begin), duration(entry)].filter(Boolean).join(", ");
}

export function drawTimeline() {
  const entries = state.document.timeline;
  const from = shownFrom();
  const span = state.span;
  const width = axis.clientWidth;
  for (const [number, made] of buttons) {
    if (number in entries) continue;
    made.remove();
    buttons.delete(number);
  }
  let first = null;
  for (const [number, entry] of Object.entries(entries)) {
    let made = buttons.get(number);
    if (!made) {
      made = element("button", { type: "button", tabindex: -1, onclick: () => pin(number) });
      buttons.set(number, made);
      tracks[laneOf(entry.kind)].append(made);
    }
    const end = entry.end ?? newest();
    const left = ((entry.begin - from) / span) * width;
    const wide = ((end - entry.begin) / span) * width;
    const isShown = left + wide >= -12 && left <= width + 2;
    made.hidden = !isShown;
    if (!isShown) continue;
    first = number;
    const kind = `entry ${entry.kind}${entry.failed ? " failed" : ""}${entry.end === undefined ? " open" : ""}`;
    if (made.className !== kind) made.className = kind;
    made.setAttribute("aria-pressed", String(pinned === number));
    made.setAttribute("aria-label", text(entry));
    made.title = text(entry);
    made.style.transform = `translateX(${Math.max(-4, left).toFixed(1)}px)`;
    made.style.width = `${Math.max(8, Math.min(wide, width - Math.max(0, left)) + Math.min(0, left)).toFixed(1)}px`;
    setText(made, wide > 90 ? entry.title : "");
  }
  if (current === null || !buttons.has(current) || buttons.get(current).hidden) current = first;
  for (const [number, made] of buttons) made.tabIndex = number === current ? 0 : -1;
  drawAxis(from, span, width);
  drawCursor();
  drawAccount();
  const details = byId("timeline-table");
  if (details.open) fillTable(details.querySelector("div"));
}

let ticks = "";

function drawAxis(from, span, width) {
  const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200].find(
    (each) => (each / span) * width > 84) ?? 14400;
  const now = [from.toFixed(1), span, width].join();
  if (now === ticks) return;
  ticks = now;
  const made = [];
  for (let time = Math.ceil(from / step) * step; time <= from + span; time += step) {
    const tick = element("i", {}, step < 60 ? clock(time) : clock(time).slice(0, 5));
    tick.style.transform = `translateX(${(((time - from) / span) * width).toFixed(1)}px)`;
    made.push(tick);
  }
  axis.replaceChildren(...made);
}

export function drawCursor() {
  const time = state.cursor;
  const isShown = time !== null && time >= shownFrom() && time <= shownTo();
  line.hidden = !isShown;
  if (!isShown) return;
  const left = axis.offsetLeft + ((time - shownFrom()) / state.span) * axis.clientWidth;
  line.style.transform = `translateX(${left.toFixed(1)}px)`;
  setText(lineTime, clock(time));
}

function pin(number) {
  pinned = pinned === number ? null : number;
  current = number;
  drawTimeline();
}

function drawAccount() {
  const aside = byId("account");
  const entry = pinned === null ? undefined : state.document.timeline[pinned];
  if (!entry) {
    pinned = shown = null;
    aside.hidden = true;
    return;
  }
  aside.hidden = false;
  if (shown !== pinned) {
    shown = pinned;
    told = "";
    const what = COMMANDS[entry.kind];
    aside.replaceChildren(element("h3", {}, element("span", {}), button("Close", unpin, "quiet")), element("div", {}),
      what ? copyable(command(what)) : "");
    setText(byId("said"), text(entry));
  }
  const now = JSON.stringify([entry, entry.end === undefined ? Math.floor(newest()) : 0]);
  if (now === told) return;
  told = now;
  setText(aside.querySelector("h3 span"), entry.title);
  const rows = Object.entries(entry.facts).filter(([name]) => name !== "steps").map(([name, value]) => element("div", {},
    element("dt", {}, LABELS[name] ?? name), element("dd", {}, (FORMATS[name] ?? String)(value))));
  aside.querySelector("div").replaceChildren(
    element("p", { class: "muted" }, [clock(entry.begin, true), duration(entry)].filter(Boolean).join(" · ")),
    element("dl", { class: "facts" }, ...rows),
    entry.facts.steps?.length ? element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Steps" },
      steps(entry.facts.steps)) : "");
}

function unpin() {
  const made = buttons.get(pinned);
  pinned = null;
  drawTimeline();
  made?.focus();
}

function steps(rows) {
  return table(["Epoch", "Bins", "Which", "Workers", "Keys", "State", "Duration"], rows.map((step) => [
    count(step.epoch), count(step.bins), step.moved, step.places, count(step.keys), bytes(step.bytes),
    seconds(step.seconds)]), "Steps of the move");
}

let filled = 0;

function fillTable(target) {
  if (filled === newest()) return;
  filled = newest();
  const rows = Object.values(state.document.timeline).slice(-100).reverse().map((entry) => [
    clock(entry.begin, true), NAMES[entry.kind] ?? entry.kind, entry.title, duration(entry),
    entry.facts.bins === undefined ? "" : compact(entry.facts.bins), entry.facts.reason ?? ""]);
  showTable(target, ["Time", "Kind", "What", "Duration", "Bins", "Reason"], rows, "Timeline, newest first");
}

box.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && pinned !== null) pin(pinned);
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1, Home: -1e9, End: 1e9 }[event.key];
  if (!step) return;
  const shown = [...buttons].filter(([, made]) => !made.hidden).map(([number]) => number).sort((a, b) => a - b);
  const place = Math.max(0, Math.min(shown.length - 1, shown.indexOf(current) + step));
  if (!shown.length) return;
  event.preventDefault();
  current = shown[place];
  for (const [number, made] of buttons) made.tabIndex = number === current ? 0 : -1;
  buttons.get(current).focus();
});

// The time under a pointer in the timeline.
export function timeAt(event) {
  const place = axis.getBoundingClientRect();
  const share = (event.clientX - place.left) / place.width;
  return share < 0 || share > 1 ? null : shownFrom() + share * state.span;
}
