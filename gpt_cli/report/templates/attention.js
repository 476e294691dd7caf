"use strict";
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const pieces = data.pieces, n = pieces.length, width = data.width;
const numbers = (text) => new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
const heads = new Map(data.heads.map((head) => [head.name, head]));
const buttons = [...document.querySelectorAll("button[data-name]")];
const quote = (token) => `“${pieces[token].replaceAll("\n", "↵")}” (${token})`;
const SVG = "http://www.w3.org/2000/svg";
const add = (parent, kind, attributes = {}, text = "") => {
  const element = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  parent.append(element);
  return element;
};

let head, weights, q, k, held = null, shown = [0, 0];
const weight = (query, key) => key > query ? 0 : weights[query * (query + 1) / 2 + key];

function strongest(query) {
  let best = 0;
  for (let key = 1; key <= query; key++) if (weight(query, key) > weight(query, best)) best = key;
  return best;
}

// The head view: queries left, keys right, a line for each weight worth seeing.
const HIGH = 17, LEFT = 118, RIGHT = 222, WIDE = 340;
function drawLines() {
  const svg = $("lines");
  svg.setAttribute("viewBox", `0 0 ${WIDE} ${n * HIGH + 6}`);
  svg.replaceChildren();
  const middle = (token) => token * HIGH + 12;
  for (let query = 0; query < n; query++)
    for (let key = 0; key <= query; key++)
      if (weight(query, key) >= 0.02)
        add(svg, "path", { d: `M${LEFT + 4} ${middle(query)}L${RIGHT - 4} ${middle(key)}`, class: "look", "data-query": query, "stroke-opacity": weight(query, key).toFixed(3) });
  for (let token = 0; token < n; token++) {
    add(svg, "rect", { x: RIGHT, y: token * HIGH + 3, width: WIDE - RIGHT, height: HIGH - 1, class: "shade", "data-key": token });
    const name = pieces[token].replaceAll("\n", "↵").replaceAll(" ", "␣");
    const short = name.length > 13 ? name.slice(0, 12) + "…" : name;
    add(svg, "text", { x: RIGHT + 5, y: middle(token) + 4, class: "token" }, short);
    add(svg, "text", { x: WIDE - 3, y: middle(token) + 4, class: "end share", "data-key": token });
    add(svg, "text", { x: LEFT - 1, y: middle(token) + 4, class: "end token", "data-query": token }, short);
    const area = add(svg, "rect", { x: 0, y: token * HIGH + 3, width: LEFT + 4, height: HIGH, class: "area" });
    area.addEventListener("pointerenter", () => held || show(token, strongest(token)));
    area.addEventListener("click", () => hold(token, strongest(token)));
  }
}

function show(query, key) {
  shown = [query, key];
  for (const path of $("lines").querySelectorAll(".look")) path.classList.toggle("off", +path.dataset.query !== query);
  for (const text of $("lines").querySelectorAll(".token[data-query]")) text.classList.toggle("on", +text.dataset.query === query);
  for (const rect of $("lines").querySelectorAll(".shade")) rect.style.fillOpacity = Math.sqrt(weight(query, +rect.dataset.key)) * 0.6;
  for (const text of $("lines").querySelectorAll(".share")) text.textContent = weight(query, +text.dataset.key) >= 0.05 ? weight(query, +text.dataset.key).toFixed(2) : "";
  const spot = $("spot");
  spot.hidden = false;
  Object.assign(spot.style, { left: `${100 * key / n}%`, top: `${100 * query / n}%`, width: `${100 / n}%`, height: `${100 / n}%` });
  $("told").textContent = key > query ? `query ${quote(query)} cannot see key ${quote(key)}: it comes later` : `query ${quote(query)} gives key ${quote(key)} ${weight(query, key).toFixed(4)} of its attention`;
  drawProducts(query, key);
}

// The detail: a query, a key and their product, dimension by dimension, in bars from a middle line.
function drawProducts(query, key) {
  const svg = $("products"), high = 44, step = (WIDE - 52) / width;
  svg.setAttribute("viewBox", `0 0 ${WIDE} ${3 * high + 4}`);
  svg.replaceChildren();
  const a = q.subarray(query * width, (query + 1) * width), b = k.subarray(key * width, (key + 1) * width);
  const product = a.map((value, d) => value * b[d]);
  [["query", a], ["key", b], ["q·k", product]].forEach(([name, values], row) => {
    const most = Math.max(1e-9, ...values.map(Math.abs)), middle = row * high + high / 2;
    add(svg, "text", { x: 46, y: middle + 4, class: "end" }, name);
    add(svg, "path", { d: `M52 ${middle}H${WIDE}`, class: "grid" });
    values.forEach((value, d) => {
      const size = Math.abs(value) / most * (high / 2 - 3);
      const bar = add(svg, "rect", { x: 52 + d * step + step * 0.1, y: value > 0 ? middle - size : middle, width: step * 0.8, height: Math.max(0.4, size), class: value > 0 ? "plus" : "minus" });
      add(bar, "title", {}, `dimension ${d}: ${value.toFixed(4)}`);
    });
  });
  let sum = 0;
  product.forEach((value) => { sum += value; });
  $("sum").textContent = `sum ${sum.toFixed(3)}, over √${width}: score ${(sum / Math.sqrt(width)).toFixed(3)}` + (key > query ? ", not seen" : `; after the softmax over what the query sees: ${weight(query, key).toFixed(4)}`);
}

function showAll() {
  for (const path of $("lines").querySelectorAll(".look")) path.classList.remove("off");
}

function hold(query, key) {
  const same = held && held[0] === query && held[1] === key;
  held = same ? null : [query, key];
  $("spot").classList.toggle("held", !same);
  show(query, key);
}

function choose(name) {
  head = heads.get(name);
  weights = numbers(head.weights); q = numbers(head.q); k = numbers(head.k);
  $("one").hidden = false;
  $("name").textContent = name;
  for (const button of buttons) button.setAttribute("aria-pressed", button.dataset.name === name);
  $("matrix").src = buttons.find((button) => button.dataset.name === name).querySelector("img").src;
  drawLines();
  show(...(held || [n - 1, strongest(n - 1)]));
  if (!held) showAll();
}

function spotted(event) {
  const box = $("matrix").getBoundingClientRect();
  const place = (at, from, size) => Math.min(n - 1, Math.max(0, Math.floor((at - from) / size * n)));
  return [place(event.clientY, box.top, box.height), place(event.clientX, box.left, box.width)];
}
$("lines").addEventListener("pointerleave", () => held || showAll());
$("matrix").addEventListener("pointermove", (event) => held || show(...spotted(event)));
$("matrix").addEventListener("click", (event) => hold(...spotted(event)));

// By keyboard: queries in the head view, cells in the matrix. What the keys choose stays, as a click does.
const inside = (token) => Math.min(n - 1, Math.max(0, token));
function moved(event, move, place) {
  if (!move) return;
  event.preventDefault();
  const [query, key] = place(shown[0] + move[0], shown[1] + move[1]);
  held = [query, key];
  $("spot").classList.add("held");
  show(query, key);
}
$("lines").addEventListener("keydown", (event) => moved(event, { ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key],
  (query) => [inside(query), strongest(inside(query))]));
$("cells").addEventListener("keydown", (event) => {
  if (event.key === "Enter" || event.key === " ") { event.preventDefault(); hold(...shown); }
  moved(event, { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key],
    (query, key) => [inside(query), inside(key)]);
});
for (const view of ["lines", "cells"]) $(view).addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  held = null;
  $("spot").classList.remove("held");
  showAll();
});
for (const button of buttons) button.addEventListener("click", () => choose(button.dataset.name));

const filters = ["layer", "head", "kind"].map($);
function filter() {
  const [layer, column, kind] = filters.map((select) => select.value);
  for (const row of document.querySelectorAll("tr[data-layer]")) row.hidden = layer !== "" && row.dataset.layer !== layer;
  for (const cell of document.querySelectorAll("[data-head]")) cell.hidden = column !== "" && cell.dataset.head !== column;
  for (const button of buttons) button.classList.toggle("faded", kind !== "" && !button.dataset.kinds.split(" ").includes(kind));
}
for (const select of filters) select.addEventListener("change", filter);
document.querySelector(".filters").hidden = false;
choose((buttons.find((button) => button.dataset.kinds) || buttons[0]).dataset.name);
