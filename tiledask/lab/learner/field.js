// A question and a place to answer it. Every key is sent on, as the reader may run the next cell
// without leaving the field; what was kept, or why not, is what Python says. A field that comes as
// the reader runs its cell takes what is typed next: JupyterLab would take it for its own commands,
// and "00" restarts the kernel.

// The cell of `el`, if the reader has just run it alone: the focus stands on it, or on the cell
// that follows, and no other cell waits for the kernel, as under Run All.
function justRun(el) {
  const cell = el.closest(".jp-Cell");
  if (!cell || ![cell, cell.nextElementSibling].includes(document.activeElement)) return false;
  const prompts = [...cell.parentElement.querySelectorAll(".jp-InputPrompt")];
  return !prompts.some((prompt) => prompt.textContent === "[*]:" && !cell.contains(prompt));
}

function render({ model, el }) {
  el.classList.add("tiledask-field");
  const label = document.createElement("label");
  const said = document.createElement("span");
  said.setAttribute("role", "status");
  const unit = model.get("unit");
  label.textContent = `Your prediction: ${model.get("question")}${unit ? ` (${unit})` : ""} `;

  const choices = model.get("choices");
  const answer = document.createElement(choices.length ? "select" : "input");
  for (const choice of choices.length ? ["", ...choices] : []) {
    answer.add(new Option(choice || "choose", choice));
  }
  if (!choices.length) {
    answer.type = "text";
    answer.placeholder = unit === "B" ? "number, kB, MB" : "a number";
    answer.size = 16;
  }
  // or JupyterLab takes letters for its own commands; in text it knows that by itself
  if (choices.length) answer.setAttribute("data-lm-suppress-shortcuts", "true");
  answer.value = model.get("typed");

  let soon;
  const send = () => {
    clearTimeout(soon);
    if (answer.value === model.get("typed")) return;
    model.set("typed", answer.value);
    model.save_changes();
  };
  answer.addEventListener("input", () => {
    clearTimeout(soon);
    soon = setTimeout(send, 60);
  });
  answer.addEventListener("change", send);
  answer.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      send();
      el.closest(".jp-Cell")?.nextElementSibling?.focus();
    }
  });

  const tell = () => {
    said.textContent = ` ${model.get("said")}`;
  };
  tell();
  model.on("change:said", tell);
  label.append(answer);
  el.append(label, said);

  // drawn before it is on the page
  const placed = setInterval(() => {
    if (!el.isConnected) return;
    clearInterval(placed);
    if (!model.get("typed") && justRun(el)) answer.focus();
  }, 10);
  return () => {
    clearInterval(placed);
    model.off("change:said", tell);
  };
}

export default { render };
