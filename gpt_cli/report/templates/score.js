// Parts of a long text become markup when they come near the window, and stay.
"use strict";

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
