/* Watch: curves of runs as they train, and how a run learned to write. Then the page as a whole. */

const SVG = "http://www.w3.org/2000/svg";
const learned = {};
let clock = null;

function svg(tag, properties, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function drawCurves(runs) {
  const rows = runs.flatMap((run) => run.metrics), losses = rows.flatMap((row) => [row.loss, row.val_loss]).filter((x) => x > 0);
  if (!losses.length) return $("curves").replaceChildren();
  const low = Math.min(...losses), high = Math.max(...losses), last = Math.max(1, ...rows.map((row) => row.step));
  const x = (step) => 44 + 584 * (step / last), y = (loss) => 232 - 220 * ((loss - low) / (high - low || 1));
  const parts = [];
  for (let i = 0; i <= 4; i++) {
    const loss = low + ((high - low) * i) / 4;
    parts.push(svg("line", { class: "grid", x1: 44, x2: 628, y1: y(loss), y2: y(loss) }),
      svg("text", { class: "end", x: 38, y: y(loss) + 4 }, loss.toFixed(2)),
      svg("text", { class: "middle", x: x((last * i) / 4), y: 252 }, Math.round((last * i) / 4)));
  }
  runs.forEach((run, i) => {
    const points = run.metrics.filter((row) => row.loss > 0).map((row) => `${x(row.step).toFixed(1)},${y(row.loss).toFixed(1)}`);
    parts.push(svg("g", { class: `c${i % 7}` }, svg("polyline", { points: points.join(" ") }),
      ...run.metrics.filter((row) => row.val_loss > 0).map((row) => svg("circle", { cx: x(row.step), cy: y(row.val_loss), r: 3.5 }))));
  });
  $("curves").replaceChildren(...parts);
}

const duration = (seconds) => `${Math.floor(Math.round(seconds) / 60)}:${String(Math.round(seconds) % 60).padStart(2, "0")}`;
const MOST_RUNS = 7; /* that have a colour of their own */

/* The names of the runs that are drawn: the chosen one is among them. */
function watched() {
  const names = Object.keys(state.runs), some = names.slice(0, MOST_RUNS), chosenRun = $("model").value;
  return some.includes(chosenRun) || !names.includes(chosenRun) ? some : [...some.slice(0, -1), chosenRun];
}

function pace(run) {
  const rows = run.metrics.filter((row) => row.tokens > 0 && row.loss > 0);
  const last = rows.at(-1), before = rows.at(-Math.min(rows.length, 10));
  if (!last) return run.of ? "no step yet" : "a checkpoint: its run has the curve";
  const value = run.metrics.filter((row) => row.val_loss > 0).at(-1);
  const parts = [`step ${last.step} of ${run.of}`, `loss ${last.loss.toFixed(3)}`];
  if (value) parts.push(`validation ${value.val_loss.toFixed(3)}`);
  const seconds = last.time - before.time;
  if (seconds > 0) {
    parts.push(`${Math.round((last.tokens - before.tokens) / seconds).toLocaleString("en")} tokens/s`);
    if (run.live) parts.push(`${duration(((run.of - last.step) * seconds) / (last.step - before.step))} left`);
  }
  return parts.join(" \u00b7 ");
}

function runsTable(runs, differing) {
  const head = make("tr", {}, ...["run", "checkpoints", ...differing].map((name) => make("th", {}, name)));
  const body = runs.map((run, i) => make("tr", {},
    make("th", {}, make("span", { className: `key c${i % 7}` }), run.name), make("td", {}, String(run.steps.length)),
    ...differing.map((name) => make("td", {}, String(state.runs[run.name].config[name] ?? "")))));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
}

async function watch() {
  try {
    await loadRuns();
    const runs = await Promise.all(watched().map((name) => ask(`/runs/${encodeURIComponent(name)}`)));
    drawCurves(runs);
    const left = Object.keys(state.runs).length - runs.length;
    const more = left > 0 ? [make("p", { className: "facts-line" }, `${left} more: a run that is chosen above is drawn, too`)] : [];
    $("progress").replaceChildren(...runs.map((run) => make("p", { className: "facts-line" }, `${run.name}: ${pace(run)}${run.live ? " \u00b7 training" : ""}`)), ...more);
    $("runs").replaceChildren(runsTable(runs, state.differing));
    const run = runs.find((one) => one.name === $("model").value) ?? runs[0];
    $("sampled").textContent = `Samples of the training of ${run.name}`;
    $("samples").replaceChildren(...run.samples.slice(-8).reverse().map((sample) => make("li", {},
      make("p", { className: "when" }, `step ${sample.step}`), make("p", { className: "sample" }, visible(sample.prompt + sample.text)))));
    if (run.live || Object.values(state.runs).length === 0) say("training: looked at again every 3 seconds");
  } catch (error) { say(error.message, true); }
  clearTimeout(clock);
  if (!$("watch").hidden) clock = setTimeout(watch, 3000);
}

function slide() {
  const steps = state.runs[$("model").value]?.steps ?? [];
  const step = steps[Number($("when").value)];
  document.querySelector("output[for=when]").textContent = step ?? "none";
  $("then").textContent = learned[`${$("model").value}@${step}`] ?? "";
}

async function learn() {
  const name = $("model").value, prompt = $("prompt").value;
  if (!state.runs[name].steps.length) return say("only this checkpoint is served, not its run", true);
  $("learned").disabled = true;
  try {
    for (const step of state.runs[name].steps) {
      say(`writing at step ${step}`);
      const answer = await ask("/v1/completions", { ...settings(), prompt, model: `${name}@${step}` });
      learned[`${name}@${step}`] = visible(prompt + answer.choices[0].text);
      $("when").value = state.runs[name].steps.indexOf(step);
      slide();
    }
    say("move the slider to see how it learned");
  } catch (error) { say(error.message, true); }
  $("learned").disabled = false;
}

async function loadRuns() {
  const told = await ask("/runs");
  state.runs = Object.fromEntries(told.runs.map((run) => [run.name, run]));
  state.differing = told.differing;
  state.flags = told.flags;
  const models = Object.keys(state.runs), before = $("model").value;
  fill($("model"), models.map((name) => [name, name]), before);
  fill($("beside"), [["", "nothing"], ...models.flatMap((name) => [[name, name],
    ...state.runs[name].steps.map((step) => [`${name}@${step}`, `${name}, step ${step}`])])], $("beside").value);
  fillSteps();
}

function fill(select, options, value) {
  if (select.dataset.options === JSON.stringify(options)) return;
  select.dataset.options = JSON.stringify(options);
  select.replaceChildren(...options.map(([key, name]) => make("option", { value: key }, name)));
  if (options.some(([key]) => key === value)) select.value = value;
}

function fillSteps() {
  const steps = state.runs[$("model").value]?.steps ?? [];
  fill($("step"), [["", "newest"], ...steps.map((step) => [String(step), String(step)])], $("step").value);
  $("when").max = Math.max(0, steps.length - 1);
  slide();
  elsewhere();
}

function open(tab) {
  for (const other of document.querySelectorAll("[role=tab]")) {
    const on = other === tab;
    other.setAttribute("aria-selected", on);
    other.tabIndex = on ? 0 : -1;
    $(other.getAttribute("aria-controls")).hidden = !on;
  }
  if (tab.id === "tab-watch") watch();
  else clearTimeout(clock);
}

async function start() {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  tabs.forEach((tab, i) => {
    tab.onclick = () => open(tab);
    tab.onkeydown = (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (move) { const to = tabs[(i + move + tabs.length) % tabs.length]; open(to); to.focus(); }
    };
  });
  startWriting();
  startReading();
  $("when").addEventListener("input", slide);
  $("learned").onclick = learn;
  $("model").onchange = () => { $("step").value = ""; fillSteps(); if (!$("watch").hidden) watch(); };
  $("step").onchange = elsewhere;
  $("keyform").onsubmit = (event) => {
    event.preventDefault();
    state.key = $("key").value;
    sessionStorage.setItem("gpt-key", state.key);
    loadRuns().then(() => { $("keyform").hidden = true; say(""); }, (error) => say(error.message, true));
  };
  try { await loadRuns(); say(""); } catch (error) { say(error.message, true); }
}
start();
