// Commands: shown ready to copy, and sent if the page may steer the job.

import { byId, element, state } from "./model.js";

let steers = null; // whether this browser may steer; null: not known yet

export function mayControl() { return state.document?.about.control === true && steers === true; }

// Ask whether this browser may steer, if the page offers it.
export async function askControl() {
  if (!state.document?.about.control) return;
  const answer = await fetch("control");
  steers = answer.ok && (await answer.json()).steers;
}

export function command(text) {
  const target = state.document?.about.target;
  return `megaflow control ${text}${target ? ` ${target}` : ""}`;
}

export function button(text, onclick, kind = "") { return element("button", { type: "button", class: kind, onclick }, text); }

export function copyable(text) {
  const copy = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text);
      toast("Copied.");
    } catch {
      getSelection().selectAllChildren(code); // the clipboard needs HTTPS or localhost
      toast("Press Ctrl-C to copy.");
    }
  }, "quiet");
  copy.setAttribute("aria-label", `Copy: ${text}`);
  const code = element("code", {}, text);
  return element("p", { class: "command" }, code, copy);
}

let timer = 0;

export function toast(text) {
  const place = byId("toast");
  place.textContent = text;
  place.classList.add("shown");
  clearTimeout(timer);
  timer = setTimeout(() => place.classList.remove("shown"), 6000);
}

// Ask for confirmation, then send a command: its name and arguments for the server, and as text.
export function post(name, values, text, danger = false) {
  const dialog = byId("confirm");
  const send = async () => {
    dialog.close();
    toast(`Sent: ${text}`);
    try {
      const answer = await fetch("control", {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Megaflow": "1" },
        body: JSON.stringify({ command: name, arguments: values }),
      });
      const told = await answer.json();
      toast(answer.ok ? `Done: ${text}` : told.error);
    } catch (error) {
      toast(`The command got no answer: ${error.message}.`);
    }
  };
  dialog.replaceChildren(
    element("h2", { id: "confirm-title" }, "Run this command?"),
    element("code", { class: "block" }, command(text)),
    element("div", { class: "actions" }, button("Cancel", () => dialog.close()),
      button("Run", send, danger ? "danger" : "primary")));
  dialog.showModal();
  dialog.querySelector("button").focus();
}
