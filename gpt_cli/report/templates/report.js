"use strict";
// Under the pointer, or by the arrow keys: where it is, and what each curve says there. The page is whole without it.
for (const svg of document.querySelectorAll("svg[data-x]")) {
  const scale = (text) => {
    const [low, high, from, to, log] = text.split(" ").map(Number);
    const [a, b] = log ? [Math.log10(low), Math.log10(high)] : [low, high];
    return (pixel) => { const v = a + (pixel - from) / (to - from) * (b - a); return log ? 10 ** v : v; };
  };
  const x = scale(svg.dataset.x), y = scale(svg.dataset.y);
  const curves = [...svg.querySelectorAll("[data-name]")].map((line) => ({
    name: line.dataset.name,
    colour: getComputedStyle(line).stroke,
    points: line.getAttribute("points").split(" ").map((point) => point.split(",").map(Number)),
  }));
  const under = svg.querySelector(".under");
  const spell = (value) => value.toLocaleString("en", Math.abs(value) < 1e-3 && value ? { notation: "scientific", maximumSignificantDigits: 4 } : { maximumSignificantDigits: Math.abs(value) >= 1e4 ? 6 : 4 });
  const add = (parent, kind, attributes, text = "") => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.textContent = text;
    parent.append(element);
  };
  let near = null;
  const show = (at) => {
    const found = curves.map((curve) => ({ ...curve, point: curve.points.reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a) }));
    if (!found.length) return;
    near = found.map((curve) => curve.point).reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a)[0];
    under.replaceChildren();
    under.removeAttribute("hidden");
    add(under, "path", { d: `M${near} 12V230` });
    const lines = [`${svg.dataset.unit} ${spell(x(near))}`, ...found.map((curve) => `${curve.name} ${spell(y(curve.point[1]))}`)];
    const width = 12 + 6.3 * Math.max(...lines.map((line) => line.length));
    const left = near + width + 14 > 460 ? Math.max(2, near - width - 8) : near + 8;
    add(under, "rect", { x: left, y: 14, width, height: 8 + 15 * lines.length, rx: 3 });
    lines.forEach((line, number) => add(under, "text", { x: left + 6, y: 28 + 15 * number }, line));
    for (const curve of found) add(under, "circle", { cx: curve.point[0], cy: curve.point[1], r: 3.5, fill: curve.colour });
  };
  const hide = () => { near = null; under.setAttribute("hidden", ""); };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    show((event.clientX - box.left) / box.width * svg.viewBox.baseVal.width);
  });
  svg.addEventListener("pointerleave", hide);
  const places = [...new Set(curves.flatMap((curve) => curve.points.map((point) => point[0])))].sort((a, b) => a - b);
  if (!places.length) continue;
  svg.setAttribute("tabindex", "0");
  svg.addEventListener("focus", () => svg.matches(":focus-visible") && show(places.at(-1)));
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const before = places.filter((place) => place < (near ?? Infinity)), after = places.filter((place) => place > (near ?? -Infinity));
    const to = { ArrowLeft: before.at(-1), ArrowRight: after[0], Home: places[0], End: places.at(-1) }[event.key];
    if (event.key === "Escape") hide();
    if (to === undefined) return;
    event.preventDefault();
    show(to);
  });
}
