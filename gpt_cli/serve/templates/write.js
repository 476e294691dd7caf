/* Write: texts side by side, token by token; another token is taken, and a branch goes on from there. */

const texts = []; /* all that were begun: the tree */
let here = [];    /* those that are shown */
let running = null;

/* What is sent only where it is not off; the rest is text. */
const OFF = { repetition_penalty: 1, presence_penalty: 0, frequency_penalty: 0, no_repeat_ngram: 0, min_new_tokens: 0 };
const OWN = ["heal", "top_k", "min_p", "repetition_penalty", "no_repeat_ngram", "min_new_tokens", "regex", "choices"];

function settings() {
  const number = (id) => Number($(id).value);
  /* A branch sends the tokens of the prompt and those shown after it, so none of the prompt may be drawn again. */
  const body = { heal: false, temperature: number("temperature"), max_tokens: number("max_tokens"), seed: number("seed") };
  body.top_k = number("top_k");
  body.top_p = number("top_p");
  body.min_p = number("min_p");
  if ($("stop").value) body.stop = $("stop").value;
  for (const [id, off] of Object.entries(OFF)) if ($(id).value !== "" && number(id) !== off) body[id] = number(id);
  if ($("regex").value) body.regex = $("regex").value;
  if ($("choices").value) body.choices = $("choices").value.split(",");
  const bias = $("logit_bias").value.split(",").filter((one) => one.trim()).map((one) => one.split("=").map((part) => part.trim()));
  if (bias.length) body.logit_bias = Object.fromEntries(bias.map(([id, value]) => [id, Number(value)]));
  return body;
}

function newText(parent, prompt, fixed) {
  const text = { number: texts.length, model: parent?.model ?? chosen(), parent, prompt, fixed: fixed.length, items: [...fixed], finish: null, problem: "" };
  texts.push(text);
  return text;
}

function itemsOf(logprobs) {
  return logprobs.ids.map((id, i) => ({
    id, text: logprobs.tokens[i], logprob: logprobs.token_logprobs[i], likeliest: logprobs.likeliest[i],
  }));
}

function draw(text) {
  const said = make("div", { className: "said" + (text.finish === null && running ? " cursor" : "") },
    make("span", { className: "given" }, visible(text.prompt)));
  text.said = said;
  append(text, 0);
  const told = text.problem ? make("p", { className: "gone" }, text.problem) : "";
  text.box.replaceChildren(make("h3", {}, title(text)), said, told);
}

/* The tokens from `first` on, behind those that are there. */
function append(text, first) {
  text.said.append(...text.items.slice(first).map((item, at) => tokenElement({ ...item, fixed: first + at < text.fixed }, first + at === 0,
    (_, element) => { mark(element); showOdds($("odds"), item, (one) => branch(text, first + at, one)); })));
}

function title(text) {
  const why = { length: "as long as asked", stop: "ended by itself" };
  const several = new Set(texts.map((one) => one.model)).size > 1;
  return `Text ${text.number + 1}` + (several ? `, by ${text.model}` : "") + (text.parent === null ? "" : `, from text ${text.parent.number + 1}`) +
    (text.finish ? `: ${text.items.length} tokens, ${why[text.finish] || text.finish}` : "");
}

function show(some) {
  here = some;
  $("texts").replaceChildren(...some.map((text) => (text.box = make("article", { className: "text" }))));
  some.forEach(draw);
  $("odds").hidden = true;
  drawTree();
}

function drawTree() {
  const list = (parent) => texts.filter((text) => text.parent === parent).map((text) => {
    const words = visible(text.items.slice(text.parent ? text.fixed - 1 : 0).map((item) => shown(item.text)).join("")).slice(0, 60);
    const button = make("button", { onclick: () => show([text]) }, `${text.number + 1}. ${words || "\u2026"}`);
    if (here.includes(text)) button.setAttribute("aria-current", "true");
    const below = list(text);
    return make("li", {}, button, ...(below.length ? [make("ul", {}, ...below)] : []));
  });
  $("tree").replaceChildren(...list(null));
  $("treebox").hidden = texts.length < 2;
}

async function write(some, body) {
  running?.abort();
  const mine = (running = new AbortController());
  $("cancel").disabled = false;
  show(some);
  const begun = performance.now();
  let count = 0, first = null;
  try {
    for await (const event of events("/v1/completions", { ...body, model: some[0].model, logprobs: 10, n: some.length }, mine.signal)) {
      first ??= performance.now() - begun;
      for (const choice of event.choices) {
        const text = some[choice.index];
        text.finish = choice.finish_reason ?? text.finish;
        if (!choice.logprobs) continue;
        const before = text.items.length, more = itemsOf(choice.logprobs);
        text.items.push(...more);
        count += more.length;
        if (here.includes(text)) append(text, before);
      }
    }
    const seconds = (performance.now() - begun) / 1000;
    say(`${count} tokens in ${seconds.toFixed(1)} s, the first after ${Math.round(first ?? 0)} ms`);
  } catch (error) {
    const why = error.name === "AbortError" ? "stopped" : error.message;
    for (const text of some) if (text.finish === null) { text.finish = "stopped"; text.problem = why === "stopped" ? "" : why; }
    say(why, why !== "stopped");
  } finally {
    if (running === mine) { running = null; $("cancel").disabled = true; }
    some.filter((text) => here.includes(text)).forEach(draw);
    drawTree();
  }
}

function begin() {
  const prompt = $("prompt").value;
  const n = Math.min(4, Math.max(1, Number($("n").value) || 1));
  const some = Array.from({ length: n }, () => newText(null, prompt, []));
  return write(some, { ...settings(), prompt });
}

async function branch(text, index, one) {
  const item = { id: one.id, text: one.text, logprob: one.logprob, likeliest: text.items[index].likeliest };
  const fixed = [...text.items.slice(0, index), item];
  try {
    const { tokens } = await ask("/tokenize", { model: text.model, text: text.prompt || "\n" }); // the ids are of its vocabulary
    const ids = [...tokens, ...fixed.map((token) => token.id)];
    await write([newText(text, text.prompt, fixed)], { ...settings(), prompt: ids });
  } catch (error) { say(error.message, true); }
}

/* The request as others would make it. */
function elsewhere() {
  const body = { model: chosen(), prompt: $("prompt").value, ...settings(), n: Number($("n").value) };
  const quote = (text) => "'" + String(text).replaceAll("'", "'\\''") + "'";
  $("as-curl").textContent = `curl ${location.origin}/v1/completions${state.key ? " -H \"Authorization: Bearer $KEY\"" : ""} \\\n  -H 'Content-Type: application/json' \\\n  -d ${quote(JSON.stringify(body))}`;
  const own = Object.fromEntries(OWN.filter((name) => name in body).map((name) => [name, body[name]]));
  const named = Object.entries(body).filter(([name]) => !(name in own))
    .map(([name, value]) => `${name}=${JSON.stringify(value)}`).join(", ");
  $("as-python").textContent = `from openai import OpenAI\n\nclient = OpenAI(base_url="${location.origin}/v1", api_key="${state.key ? "KEY" : "none"}")\nanswer = client.completions.create(${named}, extra_body=${JSON.stringify(own).replace('"heal":false', '"heal":False')})\nprint(answer.choices[0].text)`;
  const flags = { prompt: body.prompt, "max-new-tokens": body.max_tokens, temperature: body.temperature, "top-k": body.top_k,
    "top-p": body.top_p, "min-p": body.min_p, seed: body.seed, stop: body.stop,
    "repetition-penalty": body.repetition_penalty, "no-repeat-ngram": body.no_repeat_ngram, "min-new-tokens": body.min_new_tokens,
    regex: body.regex, choices: body.choices?.join(",") };
  const biases = Object.entries(body.logit_bias || {}).map(([id, value]) => ` --logit-bias ${quote(`#${id}=${value}`)}`).join("");
  const missing = ["presence_penalty", "frequency_penalty"].filter((name) => name in body);
  const run = state.runs[$("model").value];
  const path = (run?.path ?? "") + (run?.steps.length && $("step").value ? `/checkpoints/step-${$("step").value.padStart(8, "0")}` : "");
  Object.assign(flags, run?.has_template ? { prefix: "", suffix: "" } : {}, state.flags);
  $("templated").hidden = !run?.has_template;
  $("as-gpt").textContent = (flags.prompt === "-" ? "printf - | " : "") + `gpt sample ${quote(path)} ` +
    Object.entries(flags).filter(([, value]) => value !== undefined).map(([name, value]) => `--${name} ${quote(value)}`).join(" ") +
    biases + ` --no-heal -n ${body.n}` + (missing.length ? `  # without ${missing.join(" and ")}, which only the server has` : "");
}

function startWriting() {
  $("writeform").onsubmit = (event) => { event.preventDefault(); begin(); };
  $("cancel").onclick = () => running?.abort();
  $("dice").onclick = () => { $("seed").value = Math.floor(Math.random() * 2 ** 31); elsewhere(); begin(); };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !$("write").hidden) { event.preventDefault(); begin(); }
  });
  for (const slider of document.querySelectorAll("input[type=range]")) {
    const output = document.querySelector(`output[for=${slider.id}]`);
    const off = { top_k: 0, top_p: 1, min_p: 0, ...OFF }[slider.id];
    slider.addEventListener("input", () => (output.textContent = Number(slider.value) === off ? "off" : slider.value));
    slider.dispatchEvent(new Event("input"));
  }
  $("writeform").addEventListener("input", elsewhere);
  for (const button of document.querySelectorAll(".copy")) {
    button.onclick = async () => {
      try { await navigator.clipboard.writeText($(button.dataset.of).textContent); say("copied"); }
      catch { say("the browser does not let this page copy: select the text", true); }
    };
  }
}
