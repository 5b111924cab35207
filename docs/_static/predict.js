// On a page of the site the reader predicts, too: all that follows the first open question is hidden
// until it is answered or skipped. The first prediction counts; it stays in the browser.

const MULTIPLES = { "": 1, k: 1e3, m: 1e6, g: 1e9, t: 1e12, µ: 1e-6, n: 1e-9 };

// The number in "12,000,000 B", "3.5 TB", "234 ms", "27 %" or "3/11", in bytes, seconds or 1.
function number(text, unit) {
  const found = text.replaceAll(",", "").trim().match(/^(-?[\d.]+(?:e[-+]?\d+)?)(?:\s*\/\s*([\d.]+))?\s*(.*)$/i);
  if (!found) return NaN;
  const [, top, below, word] = found;
  let factor = 1;
  if (unit === "B" || unit === "s") {
    const prefix = word.replace(new RegExp(`${unit}$`, "i"), "");
    if (unit === "s" && prefix.toLowerCase() === "m") factor = 1e-3;
    else factor = MULTIPLES[prefix.toLowerCase()] ?? NaN;
  } else if (word === "%" && unit !== "%") factor = 0.01;
  return (Number(top) / (below ? Number(below) : 1)) * factor;
}

// Stars and words, by the rules of td.predict.
function judged(yours, results, unit, digits) {
  const found = results.map((each) => number(each, unit));
  if (found.some(Number.isNaN)) return yours === results.at(-1) ? [3, "right"] : [0, "no"];
  const mine = number(yours, unit);
  if (Number.isNaN(mine)) return null;
  const off = Math.min(...found.map((each) => Math.abs(mine - each)));
  const count = !unit && found.every((each) => Number.isInteger(each) && Math.abs(each) < 10000);
  const same = found.some((each) => mine.toPrecision(digits) === each.toPrecision(digits));
  if (off === 0 || (same && !count)) return [3, "exact"];
  if (!count && off <= Math.max(...found) - Math.min(...found))
    return [3, "as near as the results are to each other"];
  const actual = found.at(-1);
  if (count || !actual) return [0, "no"];
  const ratio = mine / actual;
  const words = `${Number(ratio.toPrecision(3))} x, `;
  if (off <= 0.1 * Math.abs(actual)) return [2, words + "within 10 %"];
  return ratio >= 0.5 && ratio <= 2 ? [1, words + "within a factor of 2"] : [0, words + "off"];
}

function source(cell) {
  return cell.querySelector(".cell_input")?.textContent ?? "";
}

function field(choices) {
  const answer = document.createElement(choices.length ? "select" : "input");
  if (choices.length) ["choose", ...choices].forEach((each) => answer.add(new Option(each)));
  answer.setAttribute("aria-label", "your prediction");
  return answer;
}

// The form of one question below its cell; `answered` is called once it is answered.
function ask(cell, row, answered) {
  const call = source(cell);
  const question = call.match(/predict\(\s*"([^"]+)"/)?.[1];
  const unit = call.match(/unit="([^"]*)"/)?.[1] ?? "";
  const digits = Number(call.match(/digits=(\d)/)?.[1] ?? 3);
  const listed = call.match(/choices=[([]([^)\]]*)[)\]]/)?.[1] ?? "";
  const choices = [...listed.matchAll(/"([^"]+)"/g)].map((each) => each[1]);
  const table = row.querySelector("table");
  if (!question || !table) return false;
  const results = [...table.rows[1].cells].slice(2).map((each) => each.textContent.trim());

  const form = document.createElement("form");
  const said = document.createElement("span");
  const answer = field(choices);
  const skip = document.createElement("button");
  skip.type = "button";
  skip.textContent = "skip";
  form.className = "tiledask-predict";
  form.append(`Your prediction${unit ? ` (${unit})` : ""}: `, answer, " ", skip, " ", said);
  cell.querySelector(".cell_output")?.remove();
  cell.append(form);

  const key = `${location.pathname}: ${question}`;
  function close(words) {
    answer.disabled = true;
    skip.remove();
    said.textContent = words;
    answered();
  }
  function show(typed) {
    const verdict = judged(typed, results, unit, digits);
    if (!verdict) return (said.textContent = "a number, please, as in 12 MB, 0.25 or 3/11");
    const [stars, words] = verdict;
    answer.value = typed;
    table.rows[1].cells[1].textContent = typed;
    close(`${"★".repeat(stars)}${"☆".repeat(3 - stars)} ${words}`);
    try { localStorage.setItem(key, typed); } catch { /* a page from a file may keep nothing */ }
  }
  form.addEventListener("submit", (event) => (event.preventDefault(), show(answer.value)));
  if (choices.length) answer.addEventListener("change", () => show(answer.value));
  let kept = null;
  try { kept = localStorage.getItem(key); } catch { /* as above */ }
  skip.addEventListener("click", () => close("skipped"));
  if (kept) show(kept);
  return true;
}

document.addEventListener("DOMContentLoaded", () => {
  const cells = [...document.querySelectorAll("div.cell")];
  const blocks = [...document.querySelectorAll("section > :not(section)")];
  const open = new Set();
  function unfold() {
    const until = blocks.findIndex((each) => open.has(each));
    blocks.forEach((each, at) => (each.hidden = until >= 0 && at > until));
  }
  cells.forEach((cell, at) => {
    if (!source(cell).includes("td.predict(")) return;
    const row = cells.slice(at).find((each) => source(each).includes(".compare("));
    open.add(cell);
    const asked = row && ask(cell, row, () => (open.delete(cell), unfold()));
    if (!asked) open.delete(cell);
  });
  unfold();
});
