// Boards of a page without Python: layers that the reader gives to devices, in place of sliders with
// too many figures, and below a paragraph with td.task("order-on-2") that puzzle, whose actions can
// be moved. Both are judged by the rules of td.judge and td.task; conf.py writes BOARDS.

function made(tag, properties = {}, ...inside) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...inside);
  return element;
}

// What a cut is worth; `place` has the device of each layer, from 0. `broken` is the first rule that
// it breaks, and where; null: none.
function judgedCut(place, { costs, devices, speeds }) {
  const held = Array.from({ length: devices }, () => []);
  place.forEach((device, n) => held[device].push(n + 1));
  const times = held.map((mine, d) => mine.reduce((sum, n) => sum + costs[n - 1], 0) / (speeds?.[d] ?? 1));
  const crossings = place.filter((device, n) => n && device !== place[n - 1]).length;
  const idle = held.findIndex((mine) => !mine.length);
  const apart = held.findIndex((mine) => mine.at(-1) - mine[0] + 1 !== mine.length);
  const early = held.findIndex((mine, d) => d && mine[0] < held[d - 1].at(-1));
  let broken = null;
  if (idle >= 0) broken = ["idle device", `device ${idle} has no layer`];
  else if (apart >= 0) broken = ["not contiguous", `the layers of device ${apart} are not consecutive`];
  else if (early >= 0) broken = ["out of order", `device ${early} holds layers before those of device ${early - 1}`];
  return { broken, measured: { crossings, bottleneck: Math.max(...times) }, times };
}

// What an action waits for; an action is [stage, kind, micro-batch].
function waits([stage, kind, m], { stages, split }) {
  if (kind === "W") return [[stage, "I", m]];
  if (kind === "F") return stage ? [[stage - 1, "F", m]] : [];
  return [[stage, "F", m], ...(stage + 1 < stages ? [[stage + 1, split ? "I" : "B", m]] : [])];
}

// What an order is worth: the actions of each device in turn, run with the puzzle's times.
function judgedOrder(orders, inputs) {
  const of = (value, n) => (Array.isArray(value) ? value[n] : value);
  const name = { F: "forward", B: "backward", I: "backward_input", W: "backward_weight" };
  const ends = new Map();
  const spans = orders.map(() => []);
  const next = (d) => orders[d][spans[d].length];
  const lack = (action) => waits(action, inputs).find((each) => !ends.has(`${each}`));
  for (let d; (d = orders.findIndex((_, n) => next(n) && !lack(next(n)))) >= 0; ) {
    const [stage, kind] = next(d);
    const got = waits(next(d), inputs).map((each) => {
      const here = of(inputs.place ?? each[0], each[0]) === d;
      return ends.get(`${each}`) + (here ? 0 : of(inputs.latency ?? 0, Math.min(stage, each[0])));
    });
    const start = Math.max(0, spans[d].at(-1)?.[1] ?? 0, ...got);
    ends.set(`${next(d)}`, start + of(inputs[name[kind]], stage));
    spans[d].push([start, ends.get(`${next(d)}`)]);
  }
  const kept = orders.map((order) => {
    let now = 0;
    return Math.max(...order.map(([, kind]) => (now += { F: 1, B: -1, I: 0, W: -1 }[kind])));
  });
  const stuck = orders.findIndex((_, d) => next(d));
  const over = kept.findIndex((most, d) => most > of(inputs.memory_limit ?? Infinity, d));
  let broken = null;
  if (stuck >= 0) {
    const names = [next(stuck), lack(next(stuck))].map((action) => action.join(""));
    broken = ["deadlock", `device ${stuck} is at ${names[0]} and waits for ${names[1]}`];
  } else if (over >= 0) broken = ["over memory", `device ${over} keeps ${kept[over]} activations, too many`];
  return { broken, measured: { makespan: Math.max(...ends.values()), kept: Math.max(...kept) }, spans };
}

// [stars, in words] by a puzzle's targets, as a Result of td.task.
function verdict({ broken, measured }, targets) {
  if (broken) return [0, `Not legal, ${broken.join(": ")}.`];
  const within = (got, most) => got <= most + 1e-9 * Math.abs(most);
  const met = targets.map(({ measure, wanted }) => within(measured[measure], wanted));
  const solved = met.every(Boolean);
  const best = solved && targets.every((each) => within(measured[each.measure], each.best));
  const said = targets.map(({ measure, name, wanted }, n) =>
    `${name} ${measured[measure]}, target at most ${wanted}${met[n] ? "" : ": missed"}`);
  const stars = 1 + solved + best;
  return [stars, `${["", "Not yet", "Solved", "As good as can be"][stars]}: ${said.join("; ")}.`];
}

// Layers in a row: sliders are the places between devices, and a layer that is clicked goes to the
// next device.
function cutBoard(inputs, choices, start) {
  const row = made("div", { className: "tiledask-layers" });
  const status = made("p", { role: "status" });
  let place = [];
  function give(n) {
    place[n] = (place[n] + 1) % inputs.devices;
    draw();
    row.children[n].focus();
  }
  function draw() {
    const { broken, measured, times } = judgedCut(place, inputs);
    row.replaceChildren(...place.map((device, n) => {
      const look = { type: "button", title: `on device ${device}`, className: `device-${device}` };
      return made("button", { ...look, onclick: () => give(n) }, `${n + 1}`);
    }));
    const rule = broken ? `Not layer-wise, ${broken.join(": ")}.` : "Layer-wise.";
    status.textContent = `${rule} Devices take ${times.join(", ")} s; the bottleneck is ${measured.bottleneck} s.`;
  }
  const sliders = pickers(choices, start, (chosen) => {
    const bounds = [0, ...chosen.map((at) => at + 1)];
    place = inputs.costs.map((_, n) => bounds.findLastIndex((bound) => bound <= n));
    draw();
  });
  sliders.append(row, "A click on a layer gives it to the next device.", status);
  return sliders;
}

// The actions of each device as boxes where they run, pale where they cannot. One that is dragged
// onto another, or clicked before it, takes its place; arrow keys move one, too.
function orderBoard({ title, task, hints, orders, inputs, targets }) {
  const rows = made("div", { className: "tiledask-order" });
  const status = made("p", { role: "status" });
  let held = null;
  function move(d, from, to) {
    held = null;
    if (orders[d][to]) orders[d].splice(to, 0, ...orders[d].splice(from, 1));
    draw();
    rows.children[d].children[1 + (orders[d][to] ? to : from)].focus();
  }
  function box(d, n, [start, end], ran) {
    const look = { type: "button", draggable: true, className: `kind-${orders[d][n][1]}` };
    const put = () => (held?.[0] === d && held[1] !== n ? move(d, held[1], n) : hold(held ? null : [d, n]));
    const hold = (what) => {
      held = what;
      rows.querySelectorAll("button").forEach((each) => each.classList.toggle("held", each === button && !!what));
    };
    const button = made("button", { ...look, onclick: put, ondrop: put, ondragstart: () => hold([d, n]) }, orders[d][n].join(""));
    button.ondragover = (event) => held?.[0] === d && event.preventDefault();
    button.onkeydown = ({ key }) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[key];
      if (by) move(d, n, n + by);
    };
    button.classList.toggle("stuck", !ran);
    button.style = `--start: ${start}; --long: ${end - start}`;
    return button;
  }
  function draw() {
    const judged = judgedOrder(orders, inputs);
    const [stars, words] = verdict(judged, targets);
    status.textContent = `${"★".repeat(stars)}${"☆".repeat(3 - stars)} ${words}`;
    const last = Math.max(0, ...judged.spans.flat(2));
    const left = orders.map((order, d) => order.length - judged.spans[d].length);
    rows.style = `--end: ${last + Math.max(...left)}`;
    rows.replaceChildren(...orders.map((order, d) => {
      const ran = judged.spans[d].length;
      const at = (n) => judged.spans[d][n] ?? [last + n - ran, last + n - ran + 1];
      return made("div", {}, made("span", {}, `device ${d}`), ...order.map((_, n) => box(d, n, at(n), n < ran)));
    }));
  }
  draw();
  const help = "Drag an action onto another of its device, click both, or move one by arrow keys.";
  const folded = (words, ...inside) => made("details", {}, made("summary", {}, words), ...inside);
  const all = hints.map((hint, n) => folded(`Hint ${n + 1} of ${hints.length}`, hint));
  const board = folded(`Puzzle: ${title}`, made("p", {}, task), rows, help, status, ...all);
  board.className = "tiledask-board";
  return board;
}

document.addEventListener("DOMContentLoaded", () => {
  for (const named of [...document.querySelectorAll("p code")].reverse()) {
    const name = named.textContent.match(/td\.task\("([^"]+)"\)/)?.[1];
    if (BOARDS[name]) named.closest("p").after(orderBoard(BOARDS[name]));
  }
});
