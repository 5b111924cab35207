// On a page of the site the reader predicts, too: all that follows the first open question is hidden
// until it is answered or skipped. The first prediction counts; it stays in the browser.

const MANY = { k: 1e3, m: 1e6, g: 1e9, b: 1e9, t: 1e12, p: 1e15 };
Object.assign(MANY, { thousand: 1e3, million: 1e6, billion: 1e9, trillion: 1e12 });
const BYTES = { b: 1, byte: 1, bytes: 1 };
[..."kmgtp"].forEach((each, n) => {
  BYTES[`${each}b`] = 1000 ** (n + 1);
  BYTES[`${each}ib`] = 1024 ** (n + 1);
});
const SECONDS = { s: 1, sec: 1, second: 1, seconds: 1, ms: 1e-3, µs: 1e-6, us: 1e-6, ns: 1e-9 };
Object.assign(SECONDS, { min: 60, minute: 60, minutes: 60, h: 3600, hour: 3600, hours: 3600 });
const FIGURES = /^(?:[a-z]\w*\s*=\s*)?((?:[-+−\d.,*×·^/()\s]|x(?=\s*[\d.])|(?<=[\d.])e(?=[-+−]?\d))*)(.*?)\.?$/i;
const GROUPS = /(?<![\d.,])\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+)(?![\d,])/g;

// What one "MB" is, or one "million" or "million bytes"; NaN for no such unit.
function size(word, unit) {
  const sizes = { B: BYTES, s: SECONDS, "%": { "%": 1 }, "": { "%": 0.01 } }[unit] ?? { [unit.toLowerCase()]: 1 };
  const [first, ...rest] = word.split(" ");
  if (!word || word in sizes) return sizes[word] ?? 1;
  if (unit !== "s" && unit !== "%" && first in MANY) return MANY[first] * size(rest.join(" "), unit);
  const counted = !unit && !(word in BYTES) && !(word in SECONDS) && /^[a-z -]*$/.test(word);
  return counted ? 1 : NaN;
}

// The number in "12,000,000 B", "3.5 TB", "2 x 4 kB", "234 ms", "27 %" or "3/11", in the unit.
function number(text, unit) {
  const [, figures, word] = text.trim().match(FIGURES);
  if (word.trim() && /\d *[-+−]/.test(figures.replace(/\(.*\)/, "0"))) return NaN;
  const bare = figures.trim().replace(GROUPS, (group) => group.replace(/[, ]/g, ""));
  const sum = bare.replaceAll("−", "-").replace(/[×·x]/gi, "*").replaceAll("^", "**");
  if (!/^[-+\d.*/()e\s]+$/i.test(sum)) return NaN;
  try {
    const value = Function(`"use strict"; return (${sum});`)() * size(word.trim().toLowerCase(), unit);
    return Number.isFinite(value) && !(unit && value < 0) ? value : NaN;
  } catch { return NaN; /* no sum */ }
}

// Stars and words, by the rules of td.predict; `row` has [name, shown] of the results.
function judged(yours, row, unit, digits) {
  const shown = row.map(([, each]) => each.replaceAll("\u00a0", " ").trim());
  const found = shown.map((each) => number(each, unit));
  if (found.some(Number.isNaN)) return yours === shown.at(-1) ? [3, "right"] : [0, "no"];
  const mine = number(yours, unit);
  if (Number.isNaN(mine)) return null;
  const off = Math.min(...found.map((each) => Math.abs(mine - each)));
  const count = !unit && found.every((each) => Number.isInteger(each) && Math.abs(each) < 10000);
  const same = found.map((each) => mine.toPrecision(digits) === each.toPrecision(digits));
  if (off === 0 || (same.includes(true) && !count))
    return [3, same.at(-1) ? "exact" : `exact: ${row[same.indexOf(true)][0]}`];
  if (!count && off <= Math.max(...found) - Math.min(...found))
    return [3, "as near as the results are to each other"];
  const actual = found.at(-1);
  if (count || !actual) return [0, "no"];
  const ratio = mine / actual;
  const words = `${Number(ratio.toPrecision(3))} ×, `;
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

// What the field of a cell asks, as JupyterLab would show it: {question, unit, choices}.
function asked(cell) {
  const [view, all] = [cell, document].map((where, n) =>
    where.querySelector(`script[type="application/vnd.jupyter.widget-${["view", "state"][n]}+json"]`));
  return view && all ? JSON.parse(all.textContent).state[JSON.parse(view.textContent).model_id].state : {};
}

// The stars of each prediction on this page, and the row of td.score() with them.
const won = [];
function score(cells) {
  const row = cells.find((each) => source(each).trim().endsWith("td.score()"))?.querySelector("table")?.rows[1];
  const shown = [won.length, won.filter((stars) => stars === 3).length, won.reduce((sum, each) => sum + each, 0)];
  // "0 of 6", "0", "0 of 18"
  if (row) shown.forEach((value, n) => (row.cells[n + 1].textContent = row.cells[n + 1].textContent.replace(/^\d+/, value)));
}

// The form of one question below its cell; `answered` is called once it is answered.
function ask(cell, row, answered) {
  const { question, unit, choices } = asked(cell);
  const digits = Number(source(cell).match(/digits=(\d)/)?.[1] ?? 3);
  const table = row.querySelector("table");
  if (!question || !table) return false;
  const [names, values] = [...table.rows].map((each) => [...each.cells].slice(2).map((of) => of.textContent));
  const results = names.map((name, n) => [name, values[n]]);

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
    won.push(stars);
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
    score(cells);
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
