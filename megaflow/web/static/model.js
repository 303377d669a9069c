// The state of the page: the document that the server sends (see megaflow/web/view.py), bins as arrays, time, selection.

export const FIELDS = ["targets", "owners", "rates", "keys", "bytes"];
const ROW = 64;
const HISTORY_MAX = 20000; // rows of owners that are kept to show an earlier time

export const state = {
  document: null,
  grids: [], // one per operator: {name, bins, owners, targets, rates, keys, bytes}
  operator: 0,
  cursor: null, // seconds since 1970 under the pointer, in any band
  span: 120, // seconds that timeline and charts show
  to: null, // the end of the time shown; null: the newest
  only: null, // worker whose bins stand out
  version: 0, // grows with each change of the bins
};

let history = []; // [time, operator, field, row, text before]

export function newest() { return state.document ? state.document.now : 0; }
export function shownTo() { return state.to ?? newest() + 0.01 * state.span; }
export function shownFrom() { return shownTo() - state.span; }

// Apply a merge patch (RFC 7386). Keys come from the server only, never from the job's data.
function merge(target, patch) {
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete target[key];
    else if (typeof value === "object" && !Array.isArray(value)) {
      const before = target[key];
      target[key] = merge(before && typeof before === "object" && !Array.isArray(before) ? before : {}, value);
    } else target[key] = value;
  }
  return target;
}

export function takeSnapshot(document) {
  state.document = document;
  history = [];
  state.grids = [];
  for (const [place, operator] of Object.entries(document.operators)) makeGrid(Number(place), operator);
  state.operator = Math.min(state.operator, Math.max(0, state.grids.length - 1));
  state.version += 1;
}

// Apply changes; return the bins that have a new owner, for the operator that is shown.
export function takeChanges(patch) {
  const flipped = [];
  for (const [place, changed] of Object.entries(patch.operators ?? {})) {
    if (changed === null) continue;
    const before = state.document.operators[place];
    for (const field of ["owners", "targets"]) {
      for (const row of Object.keys(changed[field] ?? {})) {
        history.push([state.document.now, Number(place), field, Number(row), before?.[field]?.[row] ?? ""]);
      }
    }
  }
  if (history.length > HISTORY_MAX) history.splice(0, history.length - HISTORY_MAX);
  merge(state.document, patch);
  for (const [place, changed] of Object.entries(patch.operators ?? {})) {
    const number = Number(place);
    const operator = state.document.operators[place];
    if (!operator) continue;
    state.version += 1;
    if (state.grids[number]?.bins !== operator.bins) {
      makeGrid(number, operator);
      continue;
    }
    state.grids[number].name = operator.name;
    for (const field of FIELDS) {
      for (const [row, text] of Object.entries(changed[field] ?? {})) {
        const codes = state.grids[number][field];
        const moved = field === "owners" && number === state.operator ? flipped : null;
        writeRow(codes, Number(row), text ?? "", moved);
      }
    }
  }
  const count = Object.keys(state.document.operators).length;
  if (state.grids.length > count) state.grids.length = count;
  state.operator = Math.min(state.operator, Math.max(0, count - 1));
  return flipped;
}

function makeGrid(place, operator) {
  const grid = { name: operator.name, bins: operator.bins };
  for (const field of FIELDS) {
    grid[field] = new Int32Array(operator.bins);
    for (const [row, text] of Object.entries(operator[field] ?? {})) writeRow(grid[field], Number(row), text, null);
  }
  state.grids[place] = grid;
}

function writeRow(codes, row, text, moved) {
  const end = Math.min(codes.length, (row + 1) * ROW);
  for (let bin = row * ROW, place = 0; bin < end; bin += 1, place += 1) {
    let code = 0;
    if (place < text.length) {
      const point = text.charCodeAt(place);
      code = (point > 92 ? point - 1 : point) - 35;
    }
    if (moved && codes[bin] && code && codes[bin] !== code) moved.push(bin);
    codes[bin] = code;
  }
}

// The grid that is shown: at the cursor's time if that is past and known, else now.
export function shownGrid() {
  const grid = state.grids[state.operator];
  if (!grid || state.cursor === null || state.cursor > newest() - 0.5) return { grid, past: false };
  if (!history.some((each) => each[0] > state.cursor)) return { grid, past: false };
  const past = { ...grid, owners: grid.owners.slice(), targets: grid.targets.slice() };
  for (let place = history.length - 1; place >= 0 && history[place][0] > state.cursor; place -= 1) {
    const [, operator, field, row, text] = history[place];
    if (operator === state.operator) writeRow(past[field], row, text, null);
  }
  return { grid: past, past: true };
}

// A number from its code, see `coarse` in megaflow/web/grids.py.
export function coarse(code) {
  if (code < 16) return code;
  const shift = Math.floor(code / 8) - 1;
  return (code - 8 * shift + 0.5) * 2 ** shift;
}

export function workerIds() {
  return Object.keys(state.document?.workers ?? {}).map(Number).sort((a, b) => a - b);
}

// Numbers for people. What is not known is N/A.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
export const NONE = "N/A";

export function isNumber(value) { return typeof value === "number" && Number.isFinite(value); }
export function count(value) { return isNumber(value) ? whole.format(value) : NONE; }

export function compact(value) {
  if (!isNumber(value)) return NONE;
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (Math.abs(value) >= size * 9.995) return `${short.format(value / size)} ${unit}`;
  }
  return Math.abs(value) >= 1000 ? whole.format(value) : short.format(value);
}

export function bytes(value) {
  if (!isNumber(value)) return NONE;
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (value >= size) return `${short.format(value / size)} ${unit}`;
  }
  return `${whole.format(value)} B`;
}

export function milliseconds(value) {
  if (!isNumber(value)) return NONE;
  return value >= 9999.5 ? `${short.format(value / 1000)} s` : `${short.format(value)} ms`;
}

export function seconds(value) {
  if (!isNumber(value)) return NONE;
  if (value < 1) return `${short.format(value * 1000)} ms`;
  if (value < 100) return `${short.format(value)} s`;
  if (value < 6000) return `${whole.format(value / 60)} min`;
  return value < 172800 ? `${whole.format(value / 3600)} h` : `${whole.format(value / 86400)} d`;
}

export function percent(value) { return isNumber(value) ? `${short.format(value * 100)} %` : NONE; }

export function clock(time, withDate = false) {
  const date = new Date(time * 1000);
  const text = date.toLocaleTimeString("en-GB");
  return withDate ? `${date.toLocaleDateString("en-CA")} ${text}` : text;
}

// Elements. Texts from data become text nodes, never HTML.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name === "colour") made.style.background = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined).map(node));
  return made;
}

function node(child) { return child instanceof Node ? child : document.createTextNode(String(child)); }

export function byId(id) { return document.getElementById(id); }

// Set a text only if it is another one: so nothing is laid out, or read aloud, again. The text's node stays.
export function setText(target, text) {
  if (target.textContent === text) return;
  if (target.childNodes.length === 1 && target.firstChild instanceof Text) target.firstChild.data = text;
  else target.textContent = text;
}

export function table(head, rows, caption) {
  return element("table", {},
    element("caption", { class: "hidden" }, caption),
    element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, cell))))));
}

// Show texts in a table. Cells that are there get their new text: a table that is open for hours would otherwise leave
// thousands of elements a second to the browser, and lose what its reader has selected.
export function showTable(place, head, rows, caption) {
  const cells = place.querySelectorAll("td");
  if (!cells.length || cells.length !== rows.length * head.length) place.replaceChildren(table(head, rows, caption));
  else rows.flat().forEach((text, number) => setText(cells[number], text));
}
