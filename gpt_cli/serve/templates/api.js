"use strict";
/* What all parts of the page share: elements, requests, streams. */

const $ = (id) => document.getElementById(id);
const state = { models: [], runs: {}, flags: {}, key: sessionStorage.getItem("gpt-key") || "" };

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/* Text of a model with all that hides or reorders made visible. */
function visible(text) {
  return text
    .replace(/\n/g, "\u21b5\n")
    .replace(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u200e\u200f\u061c\u2028-\u202e\u2066-\u2069]/g,
      (c) => "\\x" + c.charCodeAt(0).toString(16).padStart(2, "0"));
}
const shown = (token) => visible(token.replace(/^bytes:/, ""));

function say(text, bad = false) {
  $("status").textContent = text;
  $("status").classList.toggle("bad", bad);
}

class Refused extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

async function send(path, body, signal) {
  if (/[^\u0020-\u007e]/.test(state.key)) throw new Refused("a key is of ASCII letters, digits and signs", 401);
  const headers = state.key ? { Authorization: "Bearer " + state.key } : {};
  const options = body === undefined ? { headers, signal } :
    { method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("the server does not answer", 0);
  }
  if (answer.ok) return answer;
  let message = `the server says ${answer.status}`;
  try { message = (await answer.json()).error.message; } catch { /* no JSON */ }
  if (answer.status === 401) { $("keyform").hidden = false; $("key").focus(); }
  throw new Refused(message, answer.status);
}

const ask = async (path, body, signal) => (await send(path, body, signal)).json();

/* The events of a stream; throws where it breaks off. */
async function* events(path, body, signal) {
  const answer = await send(path, { ...body, stream: true }, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      let part;
      try { part = await reader.read(); } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new Refused("the connection was lost", 0);
      }
      if (part.done) throw new Refused("the connection was lost", 0);
      const lines = (rest + part.value).split("\n\n");
      rest = lines.pop();
      for (const line of lines) {
        const data = line.slice(6);
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new Refused(event.error.message, 500);
        yield event;
      }
    }
  } finally { reader.cancel().catch(() => {}); }
}

const chosen = () => $("model").value + ($("step").value ? "@" + $("step").value : "");
const bits = (logprob) => -logprob / Math.LN2;
function level(logprob) {
  if (logprob === null) return "";
  const b = bits(logprob);
  return b < 1 ? "" : b < 2 ? "l1" : b < 4 ? "l2" : b < 6 ? "l3" : b < 9 ? "l4" : "l5";
}

/* A token of a text: one stop for Tab in each text, arrows go on from there. */
function tokenElement(item, first, choose) {
  const element = make("span", { className: `tok ${level(item.logprob)}${item.fixed ? " fixed" : ""}`, role: "button",
    tabIndex: first ? 0 : -1 }, shown(item.text));
  if (item.logprob !== null) element.title = `${bits(item.logprob).toFixed(2)} bits`;
  if (!item.text.trim()) element.setAttribute("aria-label", item.text.includes("\n") ? "new line" : "space");
  element.onclick = () => choose(item, element);
  element.onkeydown = (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(item, element); }
    const to = event.key === "ArrowRight" ? element.nextElementSibling :
      event.key === "ArrowLeft" ? element.previousElementSibling : null;
    if (to && to.classList.contains("tok")) { event.preventDefault(); element.tabIndex = -1; to.tabIndex = 0; to.focus(); }
  };
  return element;
}

function mark(element) {
  for (const other of document.querySelectorAll(".tok[aria-current]")) other.removeAttribute("aria-current");
  element.setAttribute("aria-current", "true");
}

/* The likeliest tokens in the place of one, before and after temperature and filters. `take` is told which is chosen. */
function showOdds(box, item, take) {
  const percent = (p) => (100 * p).toFixed(p < 0.1 ? 1 : 0) + " %";
  const after = item.likeliest.some((one) => one.after !== null && one.after !== undefined);
  box.replaceChildren(make("h3", {}, `In place of \u201c${shown(item.text)}\u201d`,
    item.logprob === null ? "" : `, which was ${percent(Math.exp(item.logprob))}`),
    make("div", { className: "odd head" }, make("span", { className: "kind" }, ""), make("span"), make("span", {}, "model"),
      make("span", {}, after ? "drawn from" : "")));
  for (const one of item.likeliest) {
    const p = Math.exp(one.logprob), left = one.after;
    const bar = make("b");
    bar.style.width = `${Math.max(0.5, 100 * p)}%`;
    const row = make(take ? "button" : "div", { className: "odd" + (left === 0 ? " out" : "") + (one.id === item.id ? " taken" : "") },
      make("code", {}, shown(one.text)), bar, make("span", {}, percent(p)),
      make("span", {}, left === null || left === undefined ? "" : left === 0 ? "out" : percent(left)));
    if (take) { row.onclick = () => take(one); row.setAttribute("aria-label", `Go on with ${shown(one.text)}`); }
    box.append(row);
  }
  box.hidden = false;
}
