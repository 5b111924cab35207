// Actions on devices, one after the other: each row is a device, its boxes the run so far.
//
//   setup   {stages, microbatches, place, kinds: "FB" or "FIW", seconds: {F: [per stage], ...},
//            latency, limits: [per device] or null, end: seconds or null}
//   answer  "0F0,0F1,0B0; 1F0,1B0", as a reader would type it
const LOOK = {
  F: ["#0072B2", "#fff"],
  B: ["repeating-linear-gradient(45deg, #0000 0 6px, #fff5 6px 9px), #E69F00", "#222"],
  I: ["repeating-linear-gradient(45deg, #0000 0 6px, #0002 6px 9px), #F0E442", "#222"],
  W: ["repeating-linear-gradient(-45deg, #0000 0 6px, #fff4 6px 9px), #009E73", "#fff"],
};

const make = (tag, values) => Object.assign(document.createElement(tag), values);
const kindOf = (action) => action.match(/[FBIW]/)[0];
const stageOf = (action) => parseInt(action, 10);

function needs(action, stages, split) {
  const stage = stageOf(action), kind = kindOf(action), i = action.match(/\d+$/)[0];
  if (kind === "F") return stage ? [`${stage - 1}F${i}`] : [];
  if (kind === "W") return [`${stage}I${i}`];
  const behind = stage + 1 < stages ? [`${stage + 1}${split ? "I" : "B"}${i}`] : [];
  return [`${stage}F${i}`, ...behind];
}

function render({ model, el }) {
  const { stages, microbatches, place, kinds, seconds, latency, limits, end } = model.get("setup");
  const split = kinds.includes("I"), devices = Math.max(...place) + 1;
  let rows = model.get("answer").split(/[;\n]/).map((row) => row.match(/\d+[FBIW]\d+/g) || []);
  if (rows.length !== devices) rows = Array.from({ length: devices }, () => []);
  el.classList.add("tiledask-placing");

  // start and end of what is placed: an action begins once its device is free and its inputs are there
  function run() {
    const at = new Map(), turn = Array(devices).fill(0), free = Array(devices).fill(0);
    for (let moved = true; moved; ) {
      moved = false;
      for (let d = 0; d < devices; d++) {
        for (; turn[d] < rows[d].length; turn[d]++) {
          const action = rows[d][turn[d]], before = needs(action, stages, split);
          if (!before.every((need) => at.has(need))) break;
          const there = before.map((need) => at.get(need)[1] + (place[stageOf(need)] === d ? 0 : latency));
          const start = Math.max(free[d], ...there);
          free[d] = start + seconds[kindOf(action)][stageOf(action)];
          at.set(action, [start, free[d]]);
          moved = true;
        }
      }
    }
    return at;
  }
  // per stage and kind the first micro-batch left, where what it needs is placed somewhere
  function candidates(d) {
    const done = new Set(rows.flat()), mine = [...place.keys()].filter((s) => place[s] === d);
    return mine.flatMap((s) => [...kinds].flatMap((kind) => {
      const every = Array.from({ length: microbatches }, (_, i) => `${s}${kind}${i}`);
      return every.filter((action) => !done.has(action)).slice(0, 1);
    })).filter((action) => needs(action, stages, split).every((need) => done.has(need)));
  }
  function kept(d) {
    let now = 0;
    return Math.max(0, ...rows[d].map((action) => (now += { F: 1, B: -1, I: 0, W: -1 }[kindOf(action)])));
  }

  function put(d, action) {
    rows[d].push(action);
    changed();
  }
  // what needs the one that is taken away goes with it
  function take(action) {
    const gone = new Set([action]);
    for (let before = 0; before < gone.size; ) {
      before = gone.size;
      rows.flat().filter((other) => needs(other, stages, split).some((need) => gone.has(need))).forEach((other) => gone.add(other));
    }
    rows = rows.map((row) => row.filter((other) => !gone.has(other)));
    changed();
  }
  function changed() {
    show();
    model.set("answer", rows.map((row) => row.join(",")).join("; "));
    model.save_changes();
  }

  const lines = rows.map((_, d) => {
    const line = make("div", { className: "tiledask-row" });
    const [name, lane, next] = ["name", "lane", "next"].map((className) => make("div", { className }));
    line.append(name, lane, next);
    line.addEventListener("keydown", (event) => {
      const key = event.key.toUpperCase(), step = { ARROWUP: -1, ARROWDOWN: 1 }[key];
      const action = candidates(d).find((each) => kindOf(each) === key);
      if (event.key === "Escape") el.closest(".jp-Notebook")?.focus();
      else if (action) put(d, action);
      else if (key === "BACKSPACE" && rows[d].length) take(rows[d][rows[d].length - 1]);
      else if (step) focus(Math.max(0, Math.min(devices - 1, d + step)));
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    return { line, name, lane, next };
  });
  const focus = (d) => (lines[d].next.firstChild || lines[d].lane).focus();

  function button(action, title, click) {
    const textContent = stages > devices ? action : action.replace(/^\d+/, "");
    const box = make("button", { textContent, title, ariaLabel: title, onclick: click });
    box.dataset.lmSuppressShortcuts = "true";
    [box.style.background, box.style.color] = LOOK[kindOf(action)];
    return box;
  }

  const status = make("div", { role: "status" });
  const help = make("div", { className: "help", textContent: "Click what a device does next; click a box to "
    + "take it back. Keys: F, B, I, W place, Backspace takes back, up and down change the device." });

  function show() {
    const at = run(), focused = lines.findIndex(({ line }) => line.contains(document.activeElement));
    const last = Math.max(0, ...[...at.values()].map(([, stop]) => stop));
    const whole = Math.max(1.15 * last, 1.05 * (end || 0), 1);
    lines.forEach(({ name, lane, next }, d) => {
      const most = kept(d), room = limits ? limits[d] : null;
      name.textContent = `device ${d + 1}, keeps ${most}${room === null ? "" : ` of ${room}`}`;
      name.classList.toggle("over", room !== null && most > room);
      lane.tabIndex = -1;
      lane.dataset.lmSuppressShortcuts = "true";
      lane.replaceChildren(...rows[d].map((action) => {
        const [start, stop] = at.get(action);
        const box = button(action, `${action} from ${start} to ${stop} s: take back`, () => { take(action); focus(d); });
        box.tabIndex = -1;
        box.style.left = `${(100 * start) / whole}%`;
        box.style.width = `${(100 * (stop - start)) / whole}%`;
        return box;
      }));
      if (end) lane.append(make("div", { className: "end", style: `left: ${(100 * end) / whole}%` }));
      next.replaceChildren(...candidates(d).map((action) =>
        button(action, `device ${d + 1}: ${action} next`, () => { put(d, action); focus(d); })));
    });
    if (focused >= 0) focus(focused);
    status.textContent = `${rows.flat().length} of ${stages * microbatches * kinds.length} placed, ends after `
      + `${Math.round(last * 1000) / 1000} s${end ? ` (wanted: ${end} s)` : ""}`;
  }

  show();
  el.append(...lines.map(({ line }) => line), status, help);
}

export default { render };
