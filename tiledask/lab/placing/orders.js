// Actions on devices, one after the other: each row is a device, its boxes the run so far.
//
//   setup   {stages, microbatches, place, kinds: "FB" or "FIW", seconds: {F: [per stage], ...},
//            latency, limits: [per device] or null, end: seconds or null}
//   answer  "0F0,0F1,0B0; 1F0,1B0", as a reader would type it
const LOOK = {
  F: ["#0072B2", "#fff", ""],
  B: ["#E69F00", "#222", "repeating-linear-gradient(45deg, #0000, #0000 6px, #fff5 6px, #fff5 9px)"],
  I: ["#F0E442", "#222", "repeating-linear-gradient(45deg, #0000, #0000 6px, #0002 6px, #0002 9px)"],
  W: ["#009E73", "#fff", "repeating-linear-gradient(-45deg, #0000, #0000 6px, #fff4 6px, #fff4 9px)"],
};

function needs(action, stages, split) {
  const [, s, kind, i] = action.match(/^(\d+)([FBIW])(\d+)$/);
  const stage = Number(s);
  if (kind === "F") return stage ? [`${stage - 1}F${i}`] : [];
  if (kind === "W") return [`${stage}I${i}`];
  const behind = stage + 1 < stages ? [`${stage + 1}${split ? "I" : "B"}${i}`] : [];
  return [`${stage}F${i}`, ...behind];
}

function render({ model, el }) {
  const { stages, microbatches, place, kinds, seconds, latency, limits, end } = model.get("setup");
  const split = kinds.includes("I"), devices = Math.max(...place) + 1;
  const stageOf = (action) => Number(action.match(/^\d+/)[0]);
  const kindOf = (action) => action.match(/[FBIW]/)[0];
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
  const placed = () => new Set(rows.flat());
  // per stage and kind the first micro-batch left, where what it needs is placed somewhere
  function candidates(d) {
    const done = placed(), found = [];
    for (let s = 0; s < stages; s++) {
      if (place[s] !== d) continue;
      for (const kind of kinds) {
        for (let i = 0; i < microbatches; i++) {
          if (done.has(`${s}${kind}${i}`)) continue;
          if (needs(`${s}${kind}${i}`, stages, split).every((need) => done.has(need))) found.push(`${s}${kind}${i}`);
          break;
        }
      }
    }
    return found;
  }
  const kept = (d) => {
    let now = 0, most = 0;
    for (const action of rows[d]) {
      now += { F: 1, B: -1, I: 0, W: -1 }[kindOf(action)];
      most = Math.max(most, now);
    }
    return most;
  };

  function put(d, action) {
    rows = rows.map((row, e) => (e === d ? [...row, action] : row));
    changed();
  }
  // what needs the one that is taken away goes with it
  function take(action) {
    const gone = new Set([action]);
    for (let grew = true; grew; ) {
      grew = false;
      for (const other of rows.flat()) {
        if (!gone.has(other) && needs(other, stages, split).some((need) => gone.has(need))) {
          gone.add(other);
          grew = true;
        }
      }
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
    const line = document.createElement("div");
    line.className = "tiledask-row";
    const name = document.createElement("div"), lane = document.createElement("div"), next = document.createElement("div");
    name.className = "name";
    lane.className = "lane";
    next.className = "next";
    line.append(name, lane, next);
    line.addEventListener("keydown", (event) => {
      const key = event.key.toUpperCase(), choices = [...next.children];
      if (event.key === "Escape") el.closest(".jp-Notebook")?.focus();
      else if ("FBIW".includes(key) && key.length === 1) {
        const action = candidates(d).find((each) => kindOf(each) === key);
        if (action) put(d, action);
      } else if (["Backspace", "Delete"].includes(event.key) && rows[d].length) take(rows[d][rows[d].length - 1]);
      else if (["ArrowUp", "ArrowDown"].includes(event.key)) focus(d + (event.key === "ArrowUp" ? -1 : 1));
      else if (["ArrowLeft", "ArrowRight"].includes(event.key) && choices.length) {
        const at = choices.indexOf(document.activeElement) + (event.key === "ArrowLeft" ? -1 : 1);
        choices[Math.max(0, Math.min(choices.length - 1, at))].focus();
      } else return;
      event.preventDefault();
      event.stopPropagation();
    });
    return { line, name, lane, next };
  });
  const focus = (d) => {
    const near = lines[Math.max(0, Math.min(devices - 1, d))];
    (near.next.firstChild || near.lane).focus();
  };

  function button(action, title, click) {
    const box = document.createElement("button"), [colour, ink, hatch] = LOOK[kindOf(action)];
    box.textContent = stages > devices ? action : action.replace(/^\d+/, "");
    box.title = title;
    box.setAttribute("aria-label", title);
    box.setAttribute("data-lm-suppress-shortcuts", "true");
    box.style.background = hatch ? `${hatch}, ${colour}` : colour;
    box.style.color = ink;
    box.addEventListener("click", click);
    return box;
  }

  const said = document.createElement("div");
  said.setAttribute("role", "status");
  const help = document.createElement("div");
  help.className = "help";
  help.textContent = "Click what a device does next; click a box to take it back. Keys: F, B, I, W place, "
    + "Backspace takes back, arrows move.";

  function show() {
    const at = run(), focused = lines.findIndex(({ line }) => line.contains(document.activeElement));
    const last = Math.max(0, ...[...at.values()].map(([, stop]) => stop));
    const whole = Math.max(1.15 * last, 1.05 * (end || 0), 1);
    lines.forEach(({ name, lane, next }, d) => {
      const most = kept(d), room = limits ? limits[d] : null;
      name.textContent = `device ${d + 1}, keeps ${most}${room === null ? "" : ` of ${room}`}`;
      name.classList.toggle("over", room !== null && most > room);
      lane.tabIndex = -1;
      lane.setAttribute("data-lm-suppress-shortcuts", "true");
      lane.replaceChildren(...rows[d].map((action) => {
        const [start, stop] = at.get(action);
        const box = button(action, `${action} from ${start} to ${stop} s: take back`, () => { take(action); focus(d); });
        box.tabIndex = -1;
        box.style.left = `${(100 * start) / whole}%`;
        box.style.width = `${(100 * (stop - start)) / whole}%`;
        return box;
      }));
      if (end) {
        const line = document.createElement("div");
        line.className = "end";
        line.style.left = `${(100 * end) / whole}%`;
        lane.append(line);
      }
      next.replaceChildren(...candidates(d).map((action) =>
        button(action, `device ${d + 1}: ${action} next`, () => { put(d, action); focus(d); })));
    });
    if (focused >= 0) focus(focused);
    const all = stages * microbatches * kinds.length, count = rows.flat().length;
    said.textContent = `${count} of ${all} placed, ends after ${Math.round(last * 1000) / 1000} s`
      + (end ? ` (wanted: ${end} s)` : "");
  }

  show();
  el.append(...lines.map(({ line }) => line), said, help);
}

export default { render };
