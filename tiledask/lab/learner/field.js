// A question and a place to answer it. Every key is sent on, as the reader may run the next cell
// without leaving the field; what was kept, or why not, is what Python says. A field that comes as
// the reader runs its cell takes what is typed next: JupyterLab would take it for its own commands,
// and "00" restarts the kernel. Enter, with Shift or without, leads to the next cell, but for an
// answer that is refused.

// Whether the reader has just run the cell of `el` alone: the focus stands on it, or on the cell
// that follows, and no other cell waits for the kernel, as under Run All.
function justRun(el) {
  const cell = el.closest(".jp-Cell");
  if (!cell || ![cell, cell.nextElementSibling].includes(document.activeElement)) return false;
  const prompts = [...cell.parentElement.querySelectorAll(".jp-InputPrompt")];
  return !prompts.some((prompt) => prompt.textContent === "[*]:" && !cell.contains(prompt));
}

function render({ model, el }) {
  const [question, unit, choices] = ["question", "unit", "choices"].map((name) => model.get(name));
  const label = document.createElement("label");
  label.textContent = `Your prediction: ${question}${unit ? ` (${unit})` : ""} `;
  const answer = document.createElement(choices.length ? "select" : "input");
  if (choices.length) ["", ...choices].forEach((each) => answer.add(new Option(each || "choose", each)));
  else answer.placeholder = unit === "B" ? "as in 12 kB, 8 GB" : "a number";
  // or JupyterLab takes letters for its own commands
  answer.setAttribute("data-lm-suppress-shortcuts", "true");
  answer.value = model.get("typed");
  answer.addEventListener("input", () => {
    model.set("typed", answer.value);
    model.save_changes();
  });
  answer.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    // a kernel that is not busy says by then what it thinks of the last letter
    setTimeout(() => {
      if (answer.value && answer.value === model.get("refused")) answer.select();
      else el.closest(".jp-Cell")?.nextElementSibling?.focus();
    }, 250);
  });

  const said = document.createElement("span");
  said.setAttribute("role", "status");
  const tell = () => {
    said.textContent = ` ${model.get("said")}`;
    said.classList.toggle("refused", Boolean(model.get("refused")));
  };
  tell();
  model.on("change:said change:refused", tell);
  label.append(answer);
  el.classList.add("tiledask-field");
  el.append(label, said);

  // drawn before it is on the page
  const placed = setInterval(() => {
    if (!el.isConnected) return;
    clearInterval(placed);
    if (!answer.value && justRun(el)) answer.focus();
  }, 10);
  return () => clearInterval(placed);
}

export default { render };
