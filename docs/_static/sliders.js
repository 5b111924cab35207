// Sliders of a page without Python: the figure of each choice is stored with the page, and the one
// that is chosen is shown. Where there are too many, the board of the page takes their place.

// Sliders, or lists of words; `show` gets the numbers, from 0, of the chosen values at each change.
function pickers(choices, start, show) {
  const inputs = Object.entries(choices).map(([name, values], n) => {
    const words = Number.isNaN(Number(values[0]));
    const input = made(words ? "select" : "input", { name });
    if (words) values.forEach((each, at) => input.add(new Option(each, at)));
    else Object.assign(input, { type: "range", min: 0, max: values.length - 1 });
    input.value = start[n];
    return input;
  });
  const labels = inputs.map((input) => made("label", {}, made("span", {}, input.name), input, made("output")));
  const box = made("div", { className: "tiledask-sliders" }, ...labels);
  box.oninput = () => {
    const chosen = inputs.map((input) => Number(input.value));
    inputs.forEach((input, n) => {
      if (input.type === "range") input.nextSibling.textContent = choices[input.name][chosen[n]];
    });
    show(chosen);
  };
  box.onchange = box.oninput;
  box.oninput();
  return box;
}

// The place of a choice in the list of frames: the last slider's value changes first.
function frameAt(sizes, chosen) {
  return sizes.reduce((at, size, n) => at * size + chosen[n], 0);
}

document.addEventListener("DOMContentLoaded", () => {
  for (const stored of document.querySelectorAll("script.tiledask-frames")) {
    const { choices, start, frames } = JSON.parse(stored.textContent);
    if (!frames.length) {
      const few = "These figures are too many for a page: open this unit in JupyterLab.";
      stored.after(BOARDS.sliders ? cutBoard(BOARDS.sliders, choices, start) : few);
      continue;
    }
    const sizes = Object.values(choices).map((values) => values.length);
    const image = made("img", { alt: "the figure of these choices" });
    const words = made("p");
    const box = pickers(choices, start, (chosen) => {
      const [webp, width, why] = frames[frameAt(sizes, chosen)];
      words.textContent = why;
      image.hidden = !webp;
      if (webp) Object.assign(image, { src: `data:image/webp;base64,${webp}`, width });
    });
    box.append(words, image);
    stored.after(box);
  }
});
