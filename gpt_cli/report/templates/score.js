"use strict";
// Parts of a long text become markup when they come near the window, and stay.

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function fill(chunk) {
  const data = chunk.querySelector("script");
  if (!data) return;
  const table = element("table", undefined, "scored");
  const body = table.appendChild(element("tbody"));
  for (const [number, bits, rate, spans] of JSON.parse(data.textContent)) {
    const row = body.appendChild(element("tr"));
    const head = row.appendChild(element("th", number.toLocaleString("en"), "n"));
    head.scope = "row";
    row.appendChild(element("td", bits.toFixed(1), "n"));
    row.appendChild(element("td", rate === null ? "" : rate.toFixed(2), "n"));
    const code = row.appendChild(element("td")).appendChild(element("code"));
    for (let i = 0; i < spans.length; i += 3) {
      const span = code.appendChild(element("span", spans[i], "l" + spans[i + 1]));
      span.title = spans[i + 2] === null ? "not predicted" : spans[i + 2].toFixed(2) + " bits";
    }
  }
  chunk.style.minHeight = "";
  chunk.replaceChildren(table);
  const section = chunk.closest("section");
  if (!section.querySelector("span[tabindex]")) section.querySelector(".scored code span")?.setAttribute("tabindex", "0");
}

const chunks = document.querySelectorAll(".chunk");
const near = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    near.unobserve(entry.target);
    fill(entry.target);
  }
}, { rootMargin: "1000px" });
for (const chunk of chunks) near.observe(chunk);
addEventListener("beforeprint", () => chunks.forEach(fill));

// By keyboard: one stop for Tab in each list, from which arrows go on; what has the focus tells its figure.
const tokenOf = (row) => row?.querySelector("code span");
function nextRow(row, forward) {
  const rows = [...row.closest("section").querySelectorAll("tbody tr")];
  for (let at = rows.indexOf(row) + (forward ? 1 : -1); rows[at]; at += forward ? 1 : -1) if (tokenOf(rows[at])) return rows[at];
}
function stop(token) {
  token.tabIndex = 0;
  for (const other of token.closest("section").querySelectorAll("code span[tabindex]")) if (other !== token) other.removeAttribute("tabindex");
}
document.addEventListener("keydown", (event) => {
  const token = event.target.closest?.(".scored code span");
  if (!token) return;
  const row = token.closest("tr"), last = (one) => one && [...one.querySelectorAll("code span")].at(-1);
  const to = {
    ArrowRight: () => token.nextElementSibling ?? tokenOf(nextRow(row, true)), ArrowDown: () => tokenOf(nextRow(row, true)),
    ArrowLeft: () => token.previousElementSibling ?? last(nextRow(row, false)), ArrowUp: () => tokenOf(nextRow(row, false)),
  }[event.key]?.();
  if (!to) return;
  event.preventDefault();
  stop(to);
  to.focus();
});
document.addEventListener("click", (event) => {
  const token = event.target.closest(".scored code span");
  if (token) { stop(token); token.focus(); }
});
for (const section of document.querySelectorAll("main section")) {
  const first = section.querySelector(".scored code span");
  if (first) first.tabIndex = 0;
}
