// Cuts between layers: bars as high as their layers take, a handle for each cut.
//
//   setup   {costs, names: [per stage], devices, speeds: [per device], sends: [after each layer],
//            memory: [per layer] or null, capacity: [per device] or null, limit: seconds or null}
//   answer  "1-6 | 7-12 | 13-18 | 19-24", as a reader would type it
const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442", "#D55E00", "#8C6D31"];

function read(answer, stages, layers) {
  const groups = answer.split("|").map((group) => group.match(/\d+/g) || []);
  if (groups.length !== stages) return null;
  let last = 0;
  const ends = groups.map((group) => (last = group.length ? Number(group[group.length - 1]) : last));
  return ends[stages - 1] === layers ? ends.slice(0, -1) : null;
}

function render({ model, el }) {
  const { costs, names, devices, speeds, sends, memory, capacity, limit } = model.get("setup");
  const layers = costs.length, stages = names.length, highest = Math.max(...costs);
  let cuts = read(model.get("answer"), stages, layers)
    || [...Array(stages - 1).keys()].map((i) => Math.min(i + 1, layers));
  el.classList.add("tiledask-placing");

  const bars = document.createElement("div");
  bars.className = "tiledask-bars";
  const boxes = costs.map((cost, n) => {
    const bar = document.createElement("div");
    bar.className = "bar";
    bar.style.height = `${Math.max(4, (100 * cost) / highest)}%`;
    bar.title = `layer ${n + 1}: ${cost}`;
    const number = document.createElement("span");
    number.textContent = layers <= 40 || n % 5 === 4 ? n + 1 : "";
    bar.append(number);
    bars.append(bar);
    return bar;
  });
  const table = document.createElement("table");
  table.className = "stages";
  const said = document.createElement("div");
  said.setAttribute("role", "status");
  const help = document.createElement("div");
  help.className = "help";
  help.textContent = "Drag a handle, or Tab to it: arrows move by 1, Page Up and Down by 3, Home and End.";

  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const bounds = () => [0, ...cuts, layers];
  const time = (s) => {
    const [from, to] = bounds().slice(s, s + 2);
    return sum(costs.slice(from, to)) / speeds[s % devices] + (to > from && devices > 1 ? sends[to - 1] : 0);
  };
  // of all stages on the stage's device
  const held = (s) => sum(names.map((_, t) => (t % devices === s % devices ? sum(memory.slice(...bounds().slice(t, t + 2))) : 0)));
  const words = (s) => {
    const [from, to] = bounds().slice(s, s + 2);
    return to === from ? "" : to === from + 1 ? `${to}` : `${from + 1}-${to}`;
  };
  const number = (x) => `${Math.round(x * 1000) / 1000}`;

  const handles = cuts.map((_, i) => {
    const handle = document.createElement("button");
    handle.className = "handle";
    handle.setAttribute("role", "slider");
    handle.setAttribute("aria-label", `cut ${i + 1}`);
    // on the element that has the focus, or JupyterLab takes the keys for its commands
    handle.setAttribute("data-lm-suppress-shortcuts", "true");
    handle.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: 3, PageDown: -3,
        Home: -layers, End: layers }[event.key];
      if (event.key === "Escape") el.closest(".jp-Notebook")?.focus();
      if (step === undefined) return;
      event.preventDefault();
      move(i, cuts[i] + step);
    });
    handle.addEventListener("pointerdown", (event) => {
      handle.setPointerCapture(event.pointerId);
      handle.focus();
      const drag = (e) => {
        const box = bars.getBoundingClientRect();
        if (box.width) move(i, Math.round(((e.clientX - box.left) / box.width) * layers));
      };
      const end = () => handle.removeEventListener("pointermove", drag);
      handle.addEventListener("pointermove", drag);
      handle.addEventListener("pointerup", end, { once: true });
      handle.addEventListener("pointercancel", end, { once: true });
    });
    bars.append(handle);
    return handle;
  });

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
    const edges = bounds();
    boxes.forEach((bar, n) => {
      const stage = edges.findLastIndex((edge, s) => s < stages && edge <= n && edges[s + 1] > n);
      const colour = COLOURS[stage % COLOURS.length];
      bar.style.background = stage % 2 ? `repeating-linear-gradient(45deg, ${colour}, ${colour} 5px, ${colour}bb 5px, ${colour}bb 10px)` : colour;
    });
    handles.forEach((handle, i) => {
      handle.style.left = `${(100 * cuts[i]) / layers}%`;
      handle.setAttribute("aria-valuemin", 0);
      handle.setAttribute("aria-valuemax", layers);
      handle.setAttribute("aria-valuenow", cuts[i]);
      handle.setAttribute("aria-valuetext",
        `after layer ${cuts[i]}; ${names[i]} takes ${number(time(i))}, ${names[i + 1]} takes ${number(time(i + 1))}`);
    });
    table.replaceChildren(...names.map((name, s) => {
      const line = document.createElement("tr");
      const cells = [name, words(s) || "no layer", `takes ${number(time(s))}`];
      const most = capacity && capacity[s % devices];
      if (memory) cells.push(`holds ${number(held(s) / 1e9)}${capacity ? ` of ${number(most / 1e9)}` : ""} GB`);
      cells.forEach((text) => { line.insertCell().textContent = text; });
      const late = limit !== null && time(s) > limit * (1 + 1e-9);
      if (late || (memory && capacity && held(s) > most)) line.className = "over";
      return line;
    }));
    const times = names.map((_, s) => time(s)), most = Math.max(...times);
    said.textContent = `slowest: ${names[times.indexOf(most)]}, ${number(most)}`
      + (limit === null ? "" : ` (at most ${number(limit)})`);
  }

  show();
  el.append(bars, table, said, help);
}

export default { render };
