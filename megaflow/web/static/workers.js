// The head of the page, its key figures, why output stands still, and the table of workers.

import {
  byId, bytes, compact, count, element, isNumber, milliseconds, newest, NONE, seconds, setText, state, table, workerIds,
} from "./model.js";
import { isDark, swatch } from "./palette.js";
import { button, command, copyable, mayControl, post } from "./controls.js";

const STATES = {
  starting: "Starting", running: "Running", ending: "Ending", stopping: "Stopping", busy: "Busy", silent: "Silent",
  recovering: "Recovering", ended: "Ended", joined: "Joining", leaving: "Leaving", suspended: "Suspended",
};

export function stateText(name) { return STATES[name] ?? name; }

function sum(name) {
  const values = Object.values(state.document.workers).map((worker) => worker[name]).filter(isNumber);
  return values.length ? values.reduce((a, b) => a + b, 0) : null;
}

function most(name) {
  const values = Object.values(state.document.workers).map((worker) => worker[name]).filter(isNumber);
  return values.length ? Math.max(...values) : null;
}

export function drawHead() {
  const { about, status } = state.document;
  setText(byId("job"), about.job || "megaflow");
  const program = [about.program, about.version && `megaflow ${about.version}`].filter(Boolean).join(" · ");
  setText(byId("program"), program);
  const title = `${about.job ? `${about.job} · ` : ""}${stateText(status.state)} · megaflow`;
  if (document.title !== title) document.title = title;
  const pill = byId("state");
  pill.dataset.state = status.state;
  setText(pill, stateText(status.state));
  setText(byId("foot"), `Epoch ${count(status.epoch)}, output complete before epoch ${count(status.frontier)}`);
  drawFigures(status);
}

let figures = null;

function drawFigures(status) {
  const behind = status.watermark;
  const last = status.checkpoint;
  const shown = [
    ["Records", `${compact(sum("rate"))}/s`, `${compact(sum("records"))} in total`],
    ["Latency p99", milliseconds(most("p99")), `p50 ${milliseconds(most("p50"))}`],
    ["Workers", count(workerIds().length), status.joining ? `${status.joining.length} joining` : working()],
    ["Keys", compact(sum("keys")), `${compact(sum("open"))} lines open`],
    ["Watermark lag", behind ? seconds(behind.lag) : NONE, behind?.held ? `held by ${behind.held}` : "event time"],
    ["Last checkpoint", isNumber(last?.number) ? `${seconds(last.age)} ago` : NONE, checkpointNote(last)],
    ["Memory", bytes(sum("memory")), "all workers"],
  ].map((row) => row.map((text) => text.replace("N/A/s", NONE)));
  if (!figures) {
    figures = shown.map(([name]) => {
      const parts = { value: element("b", {}), note: element("small", {}) };
      byId("figures").append(element("div", {}, element("dt", {}, name), element("dd", {}, parts.value, parts.note)));
      return parts;
    });
  }
  shown.forEach(([, value, note], place) => {
    setText(figures[place].value, value);
    setText(figures[place].note, note);
  });
}

function working() {
  const running = Object.values(state.document.workers).filter((worker) => worker.state === "running").length;
  return `${running} running`;
}

function checkpointNote(last) {
  if (!last) return "no store";
  if (last.failing !== undefined) return `later ones fail: ${last.reason ?? ""}`;
  return isNumber(last.number) ? `${bytes(last.bytes)} in ${seconds(last.seconds)}` : "none yet";
}

// Why output stands still, or why the job does not answer.

let banner = "";

export function drawStill() {
  const { still, status, workers } = state.document;
  const busy = Object.entries(workers).filter(([, worker]) => worker.busy);
  const place = byId("still");
  const isQuiet = ["busy", "silent", "recovering"].includes(status.state);
  const now = JSON.stringify([still?.why, status.state, status.restart, status.launcher, status.output, status.frontier,
    status.missing, status.queued, busy.map(([id, worker]) => [id, worker.busy])]);
  const since = place.querySelector(".since");
  if (since && still) setText(since, seconds(newest() - still.since));
  if (now === banner) return;
  banner = now;
  place.hidden = !still && !isQuiet && !status.output && !status.missing && !status.queued;
  if (place.hidden) {
    place.replaceChildren();
    return;
  }
  if (!place.children.length) place.append(element("div", {}), copyable(command("explain")));
  const head = still
    ? element("h2", {}, "Output has stood still for ", element("span", { class: "since" }, seconds(newest() - still.since)),
      isNumber(status.frontier) ? `: epoch ${count(status.frontier)} is held open` : "")
    : element("h2", {}, headOf(status));
  const held = still?.why.held ?? [];
  const told = busy.map(([id, worker]) => `Worker ${id} has been ${worker.busy}`);
  const asked = (still?.why.busy ?? []).filter((each) => !busy.length).map(
    (each) => `Workers ${each.workers.join(", ")}: ${each.text}`);
  const lines = [...told, ...asked, status.output, ...(status.missing ?? []), ...(status.queued ?? []), status.restart,
    status.launcher].filter(Boolean);
  place.firstChild.replaceChildren(head,
    held.length ? element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "What holds the epoch" },
      table(["Operator", "Declared at", "Worker", "Holds", "Port", "Epoch"], held.map((each) => [
        element("code", {}, each.operator), element("code", {}, each.where), each.worker,
        `${count(each.count)} ${each.kind}`, each.port, each.epoch]), "What holds the epoch")) : "",
    ...lines.map((text) => element("p", {}, text)));
}

function headOf(status) {
  if (status.state === "recovering") return "The job has lost a process and resumes from its last checkpoint";
  if (status.state === "silent") return "Neither the coordinator nor the launcher answers";
  if (status.state === "busy") return "The coordinator is busy";
  if (status.missing && !status.output) return "Some of the input cannot be read";
  return status.queued && !status.output ? "A process that joins waits to be started" : "The job waits";
}

// Workers.

const COLUMNS = ["Worker", "State", "Records/s", "Busy", "p50", "p99", "Max", "Lines", "Open", "Waiting", "Bins", "Keys", "Memory", "Doing"];
const rows = new Map(); // id -> {row, cells}
let skeleton = "";

export function drawWorkers() {
  const workers = state.document.workers;
  const ids = workerIds();
  const control = mayControl();
  const isOver = state.document.status.state === "ended";
  const now = JSON.stringify([ids, control, isOver, isDark()]);
  if (now !== skeleton) {
    skeleton = now;
    build(ids, control, isOver);
  }
  const greatest = Math.max(1, ...ids.map((id) => workers[id].rate ?? 0));
  for (const id of ids) {
    const worker = workers[id];
    const { cells, bar, row } = rows.get(id);
    row.dataset.state = worker.state;
    const texts = [stateText(isOver ? "ended" : worker.state), compact(worker.rate), percent(worker.share), milliseconds(worker.p50), milliseconds(worker.p99),
      milliseconds(worker.max), compact(worker.lines), count(worker.open), count(worker.waiting), count(worker.bins),
      compact(worker.keys), bytes(worker.memory), worker.busy ?? worker.doing ?? ""];
    texts.forEach((text, place) => setText(cells[place], text));
    bar.style.transform = `scaleX(${((worker.rate ?? 0) / greatest).toFixed(3)})`;
  }
}

function percent(share) { return isNumber(share) ? `${Math.round(share * 100)} %` : NONE; }

function build(ids, control, isOver) {
  rows.clear();
  const body = element("tbody", {});
  for (const id of ids) {
    const cells = COLUMNS.slice(1).map(() => element("span", {}));
    const bar = element("i", { class: "bar" });
    const tools = isOver ? [] : control ? [
      button("Drain", () => post("drain", { worker: id }, `move-bins --drain ${id}`), "quiet"),
      button("Remove", () => post("remove", { worker: id }, `remove-workers --id ${id}`, true), "quiet"),
    ] : [copier(`move-bins --drain ${id}`, "Copy drain"), copier(`remove-workers --id ${id}`, "Copy remove")];
    const row = element("tr", {},
      element("th", { scope: "row" }, element("span", { class: "chip" }, swatch(id), `worker ${id}`)),
      ...cells.map((cell, place) => element("td", { class: place === 0 ? "condition" : place === 12 ? "doing" : "number" },
        cell, place === 1 ? bar : "")),
      element("td", { class: "actions" }, ...tools));
    rows.set(id, { row, cells, bar });
    body.append(row);
  }
  byId("workers").replaceChildren(
    element("caption", { class: "hidden" }, "Workers"),
    element("thead", {}, element("tr", {}, ...COLUMNS.map((name, place) => element("th", {
      scope: "col", class: place > 1 && place < 13 ? "number" : null }, name)), element("th", { scope: "col" },
      control ? "Steer" : "Commands"))), body);
  byId("workers-actions").replaceChildren(...(control ? [
    button("Add a worker", () => post("add", { count: 1, balance: true }, "add-workers 1 --balance")),
    button("Checkpoint", () => post("checkpoint", {}, "checkpoint")),
    button("Stop job", () => post("stop", {}, "stop", true), "danger"),
  ] : [copyable(command("add-workers 1 --balance"))]));
}

function copier(text, name) {
  const made = copyable(command(text)).querySelector("button");
  made.textContent = name;
  made.title = command(text);
  return made;
}
