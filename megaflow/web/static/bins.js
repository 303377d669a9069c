// The band of bins: a grid on a canvas, its legend, and what is known of the bin under the pointer or the focus.
//
// Each cell is a copy of a tile, made once for each owner, target and brightness. So a frame writes pixels only, also
// with 65,536 bins. Pointer and focus are drawn on a second canvas above the first.

import {
  bytes, byId, clock, coarse, compact, count, element, newest, NONE, setText, showTable, shownGrid, state, workerIds,
} from "./model.js";
import { colourOf, cssColour, isDark, mix, patternColour, patternOf, rgb, swatch } from "./palette.js";
import { button, command, copyable, mayControl, post } from "./controls.js";

const FLASH_MS = 700;
const LEVELS = 7;
const box = byId("bins");
const cells = byId("cells");
const overlay = byId("overlay");
const still = matchMedia("(prefers-reduced-motion: reduce)");

let tiles = new Map();
let shape = { columns: 1, size: 1, width: 0, bins: 0 }; // size: of a cell, in pixels of the screen
let focused = 0;
let hovered = null;
let pinned = null;
let flashes = new Map(); // bin -> when it flipped
let drawn = ""; // what the canvas shows
let image = null;

function ratio() { return Math.max(1, Math.min(3, devicePixelRatio || 1)); }

// The greatest cells with which all bins fit. Columns are a multiple of 8 if there are many; full rows are better.
function arrange(bins) {
  const scale = ratio();
  const width = Math.max(120, box.clientWidth) * scale;
  const height = Math.max(180, Math.min(bins > 4096 ? 420 : 290, innerHeight * 0.42)) * scale;
  let [columns, size, best] = [1, 1, 0];
  for (let count = 1; count <= Math.min(bins, width); count += count < 16 ? 1 : 8) {
    const room = Math.floor(Math.min(width / count, height / Math.ceil(bins / count), 44 * scale));
    const worth = Math.max(1, room) * (bins % count ? 1 : 1.35) + (room * count) / width;
    if (worth > best) [columns, size, best] = [count, Math.max(1, room), worth];
  }
  shape = { columns, size, width: box.clientWidth, bins, scale };
  for (const canvas of [cells, overlay]) {
    canvas.width = columns * size;
    canvas.height = Math.ceil(bins / columns) * size;
    canvas.style.width = `${canvas.width / scale}px`;
    canvas.style.height = `${canvas.height / scale}px`;
  }
  cells.dataset.columns = columns;
  box.style.height = `${cells.height / scale}px`;
  image = cells.getContext("2d").createImageData(cells.width, cells.height);
  tiles = new Map();
}

function colourAt(worker, level) {
  const base = rgb(colourOf(worker));
  const ground = rgb(cssColour("--cell"));
  const strength = 0.22 + (0.78 * level) / LEVELS;
  return [mix(ground, base, strength), mix(ground, patternColour(base), strength)];
}

function tile(owner, target, level, dim) {
  const key = ((owner * 4096 + target) * 16 + level) * 2 + (dim ? 1 : 0);
  const found = tiles.get(key);
  if (found) return found;
  if (tiles.size > 20000) tiles = new Map();
  const { size } = shape;
  const gap = size >= 24 ? 2 : size >= 5 ? 1 : 0;
  const pixels = new Uint32Array(size * size);
  const ground = rgb(cssColour("--panel"));
  const empty = rgb(cssColour("--cell"));
  const kinds = [owner, target].map((code) => (code
    ? { colours: colourAt(code - 1, dim ? 0 : level), inPattern: patternOf(code - 1) }
    : { colours: [empty, empty], inPattern: () => false }));
  for (let y = 0; y < size; y += 1) {
    for (let x = 0; x < size; x += 1) {
      let colour = ground;
      if (x < size - gap && y < size - gap) {
        const kind = kinds[target && x + y >= size - gap ? 1 : 0];
        colour = kind.colours[size >= 6 && kind.inPattern(x, y) ? 1 : 0];
        if (target && size >= 10 && Math.abs(x + y - (size - gap)) < 2) colour = ground;
      }
      pixels[y * size + x] = 0xff000000 | (colour[2] << 16) | (colour[1] << 8) | colour[0];
    }
  }
  tiles.set(key, pixels);
  return pixels;
}

function levels(rates) {
  let most = 0;
  for (const code of rates) if (code > most) most = code;
  return (code) => (code === 0 ? 0 : Math.max(1, LEVELS - Math.round((most - code) / 6)));
}

export function flip(bins) {
  if (still.matches) return;
  const now = performance.now();
  for (const bin of bins) if (flashes.size < 4096) flashes.set(bin, now);
}

// Draw the grid if it has changed. Returns whether a next frame is needed.
export function drawBins() {
  const { grid, past } = shownGrid();
  setText(byId("bins-time"), past ? `at ${clock(state.cursor)}` : "");
  if (!grid) {
    box.setAttribute("aria-label", "No operator has bins yet");
    return false;
  }
  if (shape.bins !== grid.bins || shape.width !== box.clientWidth || shape.scale !== ratio()) {
    arrange(grid.bins);
    drawn = "";
  }
  const begun = performance.now();
  const now = [state.version, state.operator, past ? state.cursor : "", state.only, isDark()].join();
  if (now !== drawn || flashes.size) {
    paint(grid);
    drawn = now;
    const took = performance.now() - begun;
    cells.dataset.frame = took.toFixed(1);
    cells.dataset.drawn = Number(cells.dataset.drawn ?? 0) + 1;
  }
  describe(grid);
  return flashes.size > 0;
}

function paint(grid) {
  const { columns, size, bins } = shape;
  const pixels = new Uint32Array(image.data.buffer);
  const width = cells.width;
  const level = levels(grid.rates);
  const { owners, targets, rates } = grid;
  for (let bin = 0; bin < bins; bin += 1) {
    const dim = state.only !== null && owners[bin] !== state.only + 1 && targets[bin] !== state.only + 1;
    const source = tile(owners[bin], targets[bin], targets[bin] ? LEVELS : level(rates[bin]), dim);
    let place = Math.floor(bin / columns) * size * width + (bin % columns) * size;
    for (let y = 0, from = 0; y < size; y += 1, place += width, from += size) {
      for (let x = 0; x < size; x += 1) pixels[place + x] = source[from + x];
    }
  }
  const context = cells.getContext("2d");
  context.putImageData(image, 0, 0);
  if (size >= 26 * ratio()) label(context, grid);
  flash(context);
}

function label(context, grid) {
  const { columns, size, bins, scale } = shape;
  context.font = `600 ${Math.round(10 * scale)}px ui-sans-serif, system-ui, sans-serif`;
  context.textBaseline = "bottom";
  context.textAlign = "right";
  for (let bin = 0; bin < bins; bin += 1) {
    if (!grid.owners[bin]) continue;
    const x = (bin % columns) * size + size - 4 * scale;
    const y = Math.floor(bin / columns) * size + size - 3 * scale;
    const text = grid.targets[bin] ? `${grid.owners[bin] - 1}→${grid.targets[bin] - 1}` : String(grid.owners[bin] - 1);
    const wide = context.measureText(text).width + 5 * scale;
    context.fillStyle = isDark() ? "rgba(8,10,14,.72)" : "rgba(255,255,255,.84)";
    context.fillRect(x - wide + 2 * scale, y - 11 * scale, wide, 12 * scale);
    context.fillStyle = cssColour("--text");
    context.fillText(text, x, y);
  }
}

function flash(context) {
  const now = performance.now();
  const { columns, size } = shape;
  for (const [bin, since] of flashes) {
    const age = (now - since) / FLASH_MS;
    if (age >= 1) flashes.delete(bin);
    else {
      context.fillStyle = `rgba(255,255,255,${0.75 * (1 - age) ** 2})`;
      context.fillRect((bin % columns) * size, Math.floor(bin / columns) * size, size, size);
    }
  }
}

// Pointer, focus and the panel beside the grid.

function selected() { return pinned ?? hovered ?? (document.activeElement === box ? focused : null); }

function drawOverlay() {
  const { columns, size, scale } = shape;
  const context = overlay.getContext("2d");
  context.clearRect(0, 0, overlay.width, overlay.height);
  for (const [bin, wide] of [[hovered, 2], [selected(), 3]]) {
    if (bin === null || bin >= shape.bins) continue;
    const room = Math.max(size, 6 * scale);
    const left = (bin % columns) * size + (size - room) / 2;
    const top = Math.floor(bin / columns) * size + (size - room) / 2;
    context.lineWidth = (wide + 2) * scale;
    context.strokeStyle = cssColour("--panel");
    context.strokeRect(left - 1, top - 1, room + 1, room + 1);
    context.lineWidth = wide * scale;
    context.strokeStyle = cssColour("--text");
    context.strokeRect(left - 1, top - 1, room + 1, room + 1);
  }
}

let built = ""; // what the panel is about
let described = ""; // its values

function describe(grid) {
  drawOverlay();
  const bin = selected();
  const aside = byId("bin");
  const operator = state.document.operators[state.operator];
  const facts = bin === null || bin >= grid.bins ? null : ["owners", "targets", "rates", "keys", "bytes"].map(
    (field) => grid[field][bin]);
  const label = gridText(grid);
  if (box.getAttribute("aria-label") !== label) box.setAttribute("aria-label", label);
  const subject = JSON.stringify([state.operator, facts && bin, facts?.[0], pinned, mayControl(), command(""), workerIds()]);
  if (subject !== built) {
    built = subject;
    described = "";
    aside.replaceChildren(...(facts ? binTools(bin, facts[0] - 1) : overviewTools(operator)));
    if (facts && document.activeElement === box) setText(byId("said"), spoken(bin, facts));
  }
  const now = JSON.stringify([state.operator, bin, facts, operator.hot, state.version]);
  if (now === described) return;
  described = now;
  aside.querySelector("dl").replaceChildren(...(facts ? binFacts(bin, facts, operator) : overview(operator, grid)));
}

function spoken(bin, [owner, target, rate, keys]) {
  const to = target ? `, in flight to worker ${target - 1}` : "";
  return `Bin ${bin}: ${owner ? `worker ${owner - 1}` : NONE}${to}, ${about(keys)} keys, ${about(rate, " records per second")}`;
}

function gridText(grid) {
  return `Bins of operator ${grid.name}: ${count(grid.bins)} bins on ${workerIds().length} workers.`;
}

function about(code, unit = "") {
  const value = coarse(code);
  return code < 16 ? `${count(value)}${unit}` : `about ${compact(value)}${unit}`;
}

function binFacts(bin, [owner, target, rate, keys, size], operator) {
  const heavy = (operator.heaviest ?? []).find((row) => row[0] === bin);
  const hot = (operator.hot ?? []).filter((row) => row[1] === bin);
  const worker = (code) => (code ? element("span", { class: "chip" }, swatch(code - 1), `worker ${code - 1}`) : NONE);
  return [
    fact("Owner", worker(owner)),
    ...(target ? [fact("In flight to", worker(target))] : []),
    fact("Keys", heavy ? count(heavy[3]) : about(keys)),
    fact("State", heavy ? bytes(heavy[4]) : `about ${bytes(coarse(size))}`),
    fact("Rate", heavy ? `${compact(heavy[1])} records/s` : about(rate, " records/s")),
    ...(heavy ? [fact("Work", `${compact(heavy[2])} ms per second`)] : []),
    fact("Hottest keys", hot.length ? keyList(hot) : "none of the operator's hottest"),
  ];
}

function fact(name, value) { return element("div", {}, element("dt", {}, name), element("dd", {}, value)); }

function binTools(bin, owner) {
  const to = workerIds().find((each) => each !== owner) ?? owner;
  const unpin = button("Unpin", () => { pinned = null; box.focus(); showSelection(); }, "quiet");
  return [
    element("h3", {}, `Bin ${bin}`, pinned === bin ? unpin : ""),
    element("dl", { class: "facts" }),
    ...(mayControl() ? [mover(bin, owner)] : []),
    copyable(command(`move-bins --bins ${bin} --to ${to}`)),
  ];
}

function overviewTools(operator) {
  return [element("h3", {}, element("code", {}, operator.name)), element("dl", { class: "facts" }),
    copyable(command("move-bins --balance"))];
}

function mover(bin, owner) {
  const choice = element("select", { "aria-label": "New owner" }, ...workerIds().filter((each) => each !== owner).map(
    (each) => element("option", { value: each }, `worker ${each}`)));
  return element("p", { class: "actions" }, choice, button("Move", () => post("move",
    { bins: String(bin), to: Number(choice.value) }, `move-bins --bins ${bin} --to ${choice.value}`)));
}

// Keys with their rates; with the grid given, each also with its owner.
function keyList(hot, grid = null) {
  const owner = (bin) => (grid && grid.owners[bin] ? element("span", { class: "chip" }, swatch(grid.owners[bin] - 1),
    `worker ${grid.owners[bin] - 1}`) : "");
  return element("ol", { class: "keys" }, ...hot.map(
    ([key, bin, rate]) => element("li", {}, element("code", {}, key), ` ${compact(rate)}/s `, owner(bin))));
}

function overview(operator, grid) {
  let keys = 0;
  let flying = 0;
  let size = 0;
  for (let bin = 0; bin < grid.bins; bin += 1) {
    keys += coarse(grid.keys[bin]);
    size += coarse(grid.bytes[bin]);
    if (grid.targets[bin]) flying += 1;
  }
  const hot = operator.hot ?? [];
  return [
    fact("Bins", count(grid.bins)), fact("In flight", count(flying)), fact("Keys", `about ${compact(keys)}`),
    fact("State", `about ${bytes(size)}`),
    fact("Hottest keys", hot.length ? keyList(hot, grid) : NONE),
  ];
}

// Tabs, legend, actions and the table behind the picture.

let tabs = "";
let legend = "";
let actions = "";

export function drawBinsFrame() {
  const operators = state.grids.map((grid) => grid.name);
  const now = JSON.stringify([operators, state.operator]);
  if (now !== tabs) {
    tabs = now;
    byId("operators").replaceChildren(...operators.map((name, place) => element("button", {
      type: "button", role: "tab", "aria-selected": String(place === state.operator), "aria-controls": "bins",
      tabindex: place === state.operator ? 0 : -1, onclick: () => choose(place),
      onkeydown: (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (step) { choose((place + step + operators.length) % operators.length); focusTab(); }
      },
    }, name)));
  }
  drawLegend();
  const plan = state.document.status.plan;
  const left = plan ? `Moving ${count(plan.bins)} bins, ${count(plan.left)} left` : "";
  setText(byId("plan"), plan && !plan.running ? `${left}: interrupted, continue with megaflow control resume` : left);
  const control = String(mayControl());
  if (control !== actions) {
    actions = control;
    byId("bins-actions").replaceChildren(...(control === "true"
      ? [button("Balance bins", () => post("move", { balance: true }, "move-bins --balance"))] : []));
  }
  const details = byId("bins-table");
  if (details.open) fillTable(details.querySelector("div"));
}

function choose(place) {
  state.operator = place;
  pinned = null;
  drawBinsFrame();
  drawBins();
}

function focusTab() { byId("operators").querySelector("[aria-selected=true]").focus(); }

function drawLegend() {
  const grid = state.grids[state.operator];
  const counts = new Map();
  for (const owner of grid?.owners ?? []) if (owner) counts.set(owner - 1, (counts.get(owner - 1) ?? 0) + 1);
  const ids = [...new Set([...workerIds(), ...counts.keys()])].sort((a, b) => a - b);
  const now = JSON.stringify([ids, state.only, isDark()]);
  const list = byId("legend");
  if (now !== legend && !list.contains(document.activeElement)) {
    legend = now;
    list.replaceChildren(...ids.map((worker) => element("li", {}, element("button", {
      type: "button", "aria-pressed": String(state.only === worker), title: "Make this worker's bins stand out",
      onclick: (event) => {
        state.only = state.only === worker ? null : worker;
        for (const other of list.querySelectorAll("button")) other.setAttribute("aria-pressed", "false");
        event.currentTarget.setAttribute("aria-pressed", String(state.only === worker));
        drawBins();
      },
    }, swatch(worker), `worker ${worker}`, element("b", {})))));
  }
  const places = list.querySelectorAll("b");
  if (places.length === ids.length) ids.forEach((worker, place) => setText(places[place], count(counts.get(worker) ?? 0)));
}

let filled = 0;

function fillTable(target) {
  if (newest() === filled) return;
  filled = newest();
  const grid = state.grids[state.operator];
  if (!grid) return;
  const rows = (state.document.operators[state.operator].heaviest ?? []).map(([bin, rate, busy, keys, size]) => [
    count(bin), grid.owners[bin] ? `worker ${grid.owners[bin] - 1}` : NONE,
    grid.targets[bin] ? `worker ${grid.targets[bin] - 1}` : "", `${compact(rate)}/s`, `${compact(busy)} ms/s`,
    count(keys), bytes(size)]);
  const owned = new Map();
  for (const owner of grid.owners) owned.set(owner, (owned.get(owner) ?? 0) + 1);
  const totals = [...owned].sort((a, b) => a[0] - b[0]).map(
    ([owner, bins]) => [owner ? `worker ${owner - 1}` : NONE, count(bins)]);
  if (!target.children.length) target.append(element("div", {}), element("div", {}), copyable(command("status --bins")));
  const [first, second] = target.children;
  showTable(first, ["Worker", "Bins"], totals, "Bins by owner");
  showTable(second, ["Bin", "Owner", "In flight to", "Records", "Work", "Keys", "State"], rows, "Bins with the most work");
}

export function redrawBins() { tiles = new Map(); drawn = ""; legend = ""; built = ""; shape.width = 0; }

function binAt(event) {
  const place = cells.getBoundingClientRect();
  const column = Math.floor(((event.clientX - place.left) * shape.scale) / shape.size);
  const row = Math.floor(((event.clientY - place.top) * shape.scale) / shape.size);
  const bin = row * shape.columns + column;
  return column >= 0 && column < shape.columns && row >= 0 && bin < shape.bins ? bin : null;
}

function showSelection() {
  const { grid } = shownGrid();
  if (grid) describe(grid);
}

box.addEventListener("pointermove", (event) => { hovered = binAt(event); showSelection(); });
box.addEventListener("pointerleave", () => { hovered = null; showSelection(); });
box.addEventListener("focus", showSelection);
box.addEventListener("blur", showSelection);
box.addEventListener("click", (event) => {
  const bin = binAt(event);
  if (bin === null) return;
  focused = bin;
  pinned = pinned === bin ? null : bin;
  showSelection();
});
box.addEventListener("keydown", (event) => {
  const steps = {
    ArrowLeft: -1, ArrowRight: 1, ArrowUp: -shape.columns, ArrowDown: shape.columns, Home: -shape.bins, End: shape.bins,
    PageUp: -8 * shape.columns, PageDown: 8 * shape.columns,
  };
  if (event.key in steps) {
    const next = focused + steps[event.key];
    if (Math.abs(steps[event.key]) >= shape.bins || (next >= 0 && next < shape.bins)) {
      focused = Math.max(0, Math.min(shape.bins - 1, next));
    }
    pinned = null;
  } else if (event.key === "Enter" || event.key === " ") pinned = pinned === focused ? null : focused;
  else if (event.key === "Escape") pinned = null;
  else return;
  event.preventDefault();
  showSelection();
});
