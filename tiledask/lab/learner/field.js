// A question and a place to answer it. Every key is sent on, as the reader may run the next cell
// without leaving the field; what was kept, or why not, is what Python says.
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
    }
  });

  const tell = () => {
    said.textContent = ` ${model.get("said")}`;
  };
  tell();
  model.on("change:said", tell);
  label.append(answer);
  el.append(label, said);
  return () => model.off("change:said", tell);
}

export default { render };
