/* Read: what surprises a model in a text, line by line, beside another. Look inside: where a head looks. */

async function readText(event) {
  event.preventDefault();
  const text = $("text").value;
  const models = [chosen(), ...($("beside").value ? [$("beside").value] : [])];
  say("reading\u2026");
  try {
    const all = await Promise.all(models.map((model) => ask("/score", { model, text, top_logprobs: 10 })));
    $("readings").replaceChildren(...all.map(drawReading));
    $("readodds").hidden = true;
    say(all.map((one) => `${one.model}: ${one.bpb.toFixed(3)} bits per byte`).join(" \u00b7 "));
  } catch (error) { say(error.message, true); }
}

function drawReading(reading) {
  const box = make("article", { className: "text" }, make("h3", {}, `${reading.model}, step ${reading.step}`),
    make("p", { className: "facts-line" }, `${reading.bpb.toFixed(3)} bits per byte, ${reading.tokens} tokens`));
  let line = [], number = 0, first = true;
  const flush = () => {
    if (!line.length) return;
    const cost = line.reduce((sum, item) => sum + (item.logprob === null ? 0 : bits(item.logprob)), 0);
    const said = make("div", { className: "said" });
    for (const item of line) {
      said.append(tokenElement({ ...item, likeliest: item.top }, first,
        (one, element) => { if (one.likeliest.length) { mark(element); showOdds($("readodds"), one, null); } }));
      first = false;
    }
    number += 1;
    box.append(make("div", { className: "readline" }, make("span", { title: `line ${number}` }, cost.toFixed(1)), said));
    line = [];
  };
  for (const item of reading.scored) { line.push(item); if (item.text.includes("\n")) flush(); }
  flush();
  return box;
}

async function lookInside(event) {
  event.preventDefault();
  say("looking\u2026");
  try {
    const seen = await ask("/attention", { model: chosen(), text: $("seen").value, layer: Number($("layer").value), head: Number($("head").value) });
    $("layer").max = seen.layers - 1;
    $("head").max = seen.heads - 1;
    drawAttention(seen);
    const size = seen.tokens.length, all = seen.text_tokens === size ? "" : `; the last ${size} of ${seen.text_tokens} tokens`;
    say(`layer ${seen.layer} of 0 to ${seen.layers - 1}, head ${seen.head} of 0 to ${seen.heads - 1}${all}`);
  } catch (error) { say(error.message, true); }
}

function drawAttention(seen) {
  const size = seen.tokens.length;
  const said = make("div", { className: "said" });
  const canvas = make("canvas", { width: size, height: size, role: "img" });
  canvas.setAttribute("aria-label", "The weights: a row for each token, from the first at the top");
  const paper = canvas.getContext("2d"), dark = matchMedia("(prefers-color-scheme: dark)").matches;
  seen.weights.forEach((row, i) => row.forEach((weight, j) => {
    paper.fillStyle = dark ? `rgba(86, 180, 233, ${weight})` : `rgba(0, 114, 178, ${weight})`;
    paper.fillRect(j, i, 1, 1);
  }));
  const elements = seen.tokens.map((token, i) => tokenElement({ text: token, logprob: null }, i === 0, (_, element) => {
    mark(element);
    elements.forEach((other, j) => (other.style.backgroundColor = j <= i ? `rgba(90, 150, 220, ${0.9 * (seen.weights[i][j] ?? 0)})` : ""));
  }));
  said.append(...elements);
  $("attention").replaceChildren(said, canvas);
  elements.at(-1)?.click();
}

function startReading() {
  $("readform").onsubmit = readText;
  $("lookform").onsubmit = lookInside;
}
