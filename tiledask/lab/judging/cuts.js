// Cuts between layers: bars as high as their layers take, a handle for each cut.
//
//   setup   {costs, names: [per stage], devices, speeds: [per device], sends: [after each layer],
//            memory: [per layer] or null, capacity: [per device] or null, limit: seconds or null}
//   answer  "1-6 | 7-12 | 13-18 | 19-24", as a reader would type it
const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442", "#D55E00", "#8C6D31"];

const make = (tag, values) => Object.assign(document.createElement(tag), values);
const sum = (values) => values.reduce((a, b) => a + b, 0);
const number = (x) => `${Math.round(x * 1000) / 1000}`;

function read(answer, stages, layers) {
  let last = 0;
  const ends = answer.split("|").map((group) => (last = Number((group.match(/\d+/g) || [last]).pop())));
  return ends.length === stages && last === layers ? ends.slice(0, -1) : null;
}

function render({ model, el }) {
  const { costs, names, devices, speeds, sends, memory, capacity, limit } = model.get("setup");
  const layers = costs.length, stages = names.length, highest = Math.max(...costs);
  let cuts = read(model.get("answer"), stages, layers)
    || [...Array(stages - 1).keys()].map((i) => Math.min(i + 1, layers));
  el.classList.add("tiledask-placing");

  const bars = make("div", { className: "tiledask-bars" });
  const boxes = costs.map((cost, n) => {
    const bar = make("div", { className: "bar", title: `layer ${n + 1}: ${cost}` });
    bar.style.height = `${Math.max(4, (100 * cost) / highest)}%`;
    bar.append(make("span", { textContent: layers <= 40 || n % 5 === 4 ? n + 1 : "" }));
    return bar;
  });
  const table = make("table", { className: "stages" });
  const status = make("div", { role: "status" });
  const help = make("div", { className: "help",
    textContent: "Drag a handle, or Tab to it: arrows move by 1, Page Up and Down by 3, Home and End." });

  const ends = (s) => [0, ...cuts, layers].slice(s, s + 2);
  const time = (s) => {
    const [from, to] = ends(s);
    return sum(costs.slice(from, to)) / speeds[s % devices] + (to > from && devices > 1 ? sends[to - 1] : 0);
  };
  // of all stages on the stage's device
  const held = (s) => sum(names.map((_, t) => (t % devices === s % devices ? sum(memory.slice(...ends(t))) : 0)));
  const words = (s) => {
    const [from, to] = ends(s);
    return to === from ? "" : to === from + 1 ? `${to}` : `${from + 1}-${to}`;
  };

  const handles = cuts.map((_, i) => {
    const handle = make("button", { className: "handle", role: "slider", ariaLabel: `cut ${i + 1}`,
      ariaValueMin: 0, ariaValueMax: layers });
    // on the element that has the focus, or JupyterLab takes the keys for its commands
    handle.dataset.lmSuppressShortcuts = "true";
    handle.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: 3, PageDown: -3,
        Home: -layers, End: layers }[event.key];
      if (event.key === "Escape") el.closest(".jp-Notebook")?.focus();
      if (step === undefined) return;
      event.preventDefault();
      move(i, cuts[i] + step);
    });
    handle.addEventListener("pointerdown", (event) => handle.setPointerCapture(event.pointerId));
    handle.addEventListener("pointermove", (event) => {
      const box = bars.getBoundingClientRect();
      if (handle.hasPointerCapture(event.pointerId)) move(i, Math.round(((event.clientX - box.left) / box.width) * layers));
    });
    return handle;
  });
  bars.append(...boxes, ...handles);

  // a cut pushes those that it meets; two in one place leave a stage without a layer
  function move(i, to) {
    const at = Math.max(0, Math.min(layers, to));
    if (at === cuts[i]) return;
    cuts = cuts.map((cut, j) => (j < i ? Math.min(cut, at) : j > i ? Math.max(cut, at) : at));
    show();
    model.set("answer", names.map((_, s) => words(s)).join(" | "));
    model.save_changes();
  }

  function show() {
    boxes.forEach((bar, n) => {
      const stage = cuts.filter((cut) => cut <= n).length, colour = COLOURS[stage % COLOURS.length];
      bar.style.background = stage % 2 ? `repeating-linear-gradient(45deg, ${colour} 0 5px, ${colour}bb 5px 10px)` : colour;
    });
    handles.forEach((handle, i) => {
      handle.style.left = `${(100 * cuts[i]) / layers}%`;
      handle.ariaValueNow = cuts[i];
      handle.ariaValueText =
        `after layer ${cuts[i]}; ${names[i]} takes ${number(time(i))}, ${names[i + 1]} takes ${number(time(i + 1))}`;
    });
    table.replaceChildren(...names.map((name, s) => {
      const line = make("tr"), cells = [name, words(s) || "no layer", `takes ${number(time(s))}`];
      if (memory) cells.push(`holds ${number(held(s) / 1e9)} of ${number(capacity[s % devices] / 1e9)} GB`);
      cells.forEach((text) => { line.insertCell().textContent = text; });
      const late = limit !== null && time(s) > limit * (1 + 1e-9);
      if (late || (memory && held(s) > capacity[s % devices])) line.className = "over";
      return line;
    }));
    const times = names.map((_, s) => time(s)), most = Math.max(...times);
    status.textContent = `slowest: ${names[times.indexOf(most)]}, ${number(most)}`
      + (limit === null ? "" : ` (at most ${number(limit)})`);
  }

  show();
  el.append(bars, table, status, help);
}

export default { render };
