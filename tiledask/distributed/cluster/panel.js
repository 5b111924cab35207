// JupyterLab's Dask panels follow the newest cluster. Where there is none yet, the first cluster
// opens tiledask's page at the right; a button brings it back.
(() => {
  const shown = document.currentScript.previousElementSibling;
  const [link, button] = [shown.querySelector("a"), shown.querySelector("button")];
  const started = Number(shown.dataset.started);
  let address = shown.dataset.dashboard;
  const server = document.getElementById("jupyter-config-data");
  if (server && !["127.0.0.1", "localhost"].includes(location.hostname)) {
    // from afar only the Jupyter server is reached, and it hands on
    const base = new URL(JSON.parse(server.textContent).baseUrl, location.href);
    address = new URL(`proxy/${new URL(address).port}`, base).href;
    link.href = link.textContent = `${address}/tiledask`;
  }
  const lab = window.jupyterapp; // there if JupyterLab was started to expose it, as `make lab` does
  if (!lab?.commands.hasCommand("dask:populate-dashboard-url")) return;
  const answers = () =>
    fetch(`${address}/individual-plots.json`, { mode: "no-cors" }).then(
      (answer) => answer.ok || answer.type === "opaque",
      () => false,
    );
  const follow = () => {
    window.tiledaskFollowed = started;
    // an address that they have already is not asked again, even if nobody answers there
    const had = document.querySelector(".dask-URLInput input")?.value;
    const url = had === address ? `${address}/` : address;
    lab.commands.execute("dask:populate-dashboard-url", { url });
  };
  const show = (panel) => panel.querySelector("iframe")?.src.startsWith(`${address}/`);
  // news of the address before, asked for earlier and come later, would win: look again for a while
  const keep = (times) =>
    setTimeout(async () => {
      if (window.tiledaskFollowed !== started || !(await answers())) return;
      if (![...document.querySelectorAll(".dask-DaskDashboard-widget")].every(show)) follow();
      if (times > 1) keep(times - 1);
    }, 3000);
  const item = { route: "/individual-tiledask", label: "Tiledask", key: "Individual Tiledask" };
  const open = async () => {
    window.tiledaskOpened = true; // whoever closes it is not shown it again
    const { currentWidget } = lab.shell;
    follow();
    const options = { mode: "split-right" };
    await lab.commands.execute("dask:launch-dashboard", { item, options });
    lab.shell.activateById(currentWidget?.id); // the reader goes on in the notebook
    keep(8);
  };
  button.hidden = false;
  button.onclick = open;
  // what a saved notebook shows may have ended, and what is shown again is no newer than it was
  answers().then((yes) => {
    if (!yes || started <= (window.tiledaskFollowed ?? 0)) return;
    const there = window.tiledaskOpened || document.querySelector(".dask-DaskDashboard-widget");
    if (!there) return open();
    follow();
    keep(8);
  });
})();
