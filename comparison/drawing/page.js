"use strict";
// Unpacks the drawing library and the numbers in this page, and draws what the switches select. Fetches nothing.

async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function sortable(table) {
  const body = table.tBodies[0];
  table.querySelectorAll("th button").forEach((button, column) => button.addEventListener("click", () => {
    const head = button.parentElement;
    const up = head.ariaSort !== "ascending";
    table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (row) => {  // the number that a cell begins with, else its text; "—" is the last
      const text = row.cells[column].textContent;
      const number = parseFloat(text.replaceAll(",", ""));
      return isNaN(number) ? text.replace("—", "") : number;
    };
    const compare = (a, b) => a === b ? 0 : a === "" ? 1 : b === "" ? -1
      : (up ? 1 : -1) * (isNaN(a) || isNaN(b) ? String(a).localeCompare(b) : a - b);
    body.append(...[...body.rows].sort((a, b) => compare(value(a), value(b))));
  }));
}

document.querySelectorAll("table.sortable").forEach(sortable);

async function main() {
  const page = JSON.parse(await unpacked("payload"));
  const script = document.createElement("script");
  script.textContent = await unpacked("library");
  document.head.append(script);
  const byId = (id) => document.getElementById(id);
  byId("figures").hidden = false;

  const shown = new Set(page.groups.keys());
  const titles = () => page.groups.filter((_, i) => shown.has(i)).map((group) => group.title);
  const draw = (id, spec, rows) => {
    const wanted = new Set(titles());
    const data = { name: "rows", values: rows.filter((row) => wanted.has(row.group)) };
    const { least = 240, most = 1060, list = false } = spec.usermeta ?? {};
    const above = list && byId(id).clientWidth < 560;  // on a phone the labels of a list stand above its lines
    const config = above ? { ...page.style, axisY: { labelAlign: "left", labelPadding: 0, labelBaseline: "bottom", labelOffset: -6 } } : page.style;
    const size = above ? { height: 1.3 * spec.height, padding: { left: 5, right: 12, top: 5, bottom: 5 } } : {};
    const width = spec.facet ? {} : { width: Math.max(least, Math.min(most, byId(id).clientWidth - (spec.autosize ? 0 : 90))) };
    const legend = spec.encoding?.color?.field === "group" ? { encoding: { ...spec.encoding, color: { ...spec.encoding.color, legend: null } } } : {};
    return vegaEmbed(byId(id), { ...spec, ...width, ...size, ...legend, data, config }, { renderer: "svg", actions: false });
  };

  const { differences = [], grid = [], trials = [], curves: lines = [], rates: losses = [], maps: statistics = [] } = page.figures;
  const rowsOf = ({ columns }) => columns.group.map((_, i) =>
    Object.fromEntries(Object.entries(columns).map(([field, values]) => [field, values[i]])));

  function curves() {
    const figure = lines[byId("curve-metric").selectedIndex];
    const axis = document.querySelector("input[name=axis]:checked").value;
    const spec = structuredClone(figure.spec);
    Object.assign(spec.encoding.x, { field: axis, title: page.axes[axis] });
    return draw("curves", spec, rowsOf(figure));
  }

  const map = () => statistics[byId("map-name").selectedIndex];
  const stepsOf = (figure) => [...new Set(figure.columns.step)].sort((a, b) => a - b);

  function maps() {
    const columns = Math.max(1, Math.floor((byId("map").clientWidth - 110) / 215));
    const spec = { ...map().spec, columns: Math.min(columns, Math.max(1, shown.size)) };
    return draw("map", spec, rowsOf(map()));
  }

  function profile() {
    const steps = stepsOf(map());
    const slider = byId("profile-slider");
    slider.max = steps.length - 1;
    const step = steps[Math.min(slider.value, steps.length - 1)];
    byId("profile-step").textContent = step;
    slider.setAttribute("aria-valuetext", `step ${step}`);
    const spec = structuredClone(page.profile);
    spec.encoding.y.title = map().name;
    return draw("profile", spec, rowsOf(map()).filter((row) => row.step === step));
  }

  const rates = () => draw("rates", losses[0].spec, rowsOf(losses[0]));
  const glance = () => draw("glance", differences[0].spec, rowsOf(differences[0]));
  const cells = () => draw("grid", grid[0].spec, rowsOf(grid[0]));
  const tried = () => draw("trials", trials[0].spec, rowsOf(trials[0]));
  const figures = [];
  byId("s-glance").hidden = !differences.length;
  byId("s-grid").hidden = !grid.length;
  byId("s-trials").hidden = !trials.length;
  if (differences.length) figures.push(glance);
  if (grid.length) figures.push(cells);
  if (trials.length) figures.push(tried);
  if (lines.length) figures.push(curves);
  if (statistics.length) figures.push(maps, profile);
  if (losses.length) figures.push(rates);
  const all = () => Promise.all(figures.map((figure) => figure()));

  const options = (id, names) => byId(id).append(...names.map((name) => new Option(name, name)));
  options("curve-metric", lines.map((figure) => figure.name));
  options("map-name", statistics.map((figure) => figure.name));
  byId("map-name").selectedIndex = Math.max(0, statistics.findIndex(({ name }) => name === "act.rms/*.mlp"));
  byId("s-maps").hidden = !statistics.length;
  byId("s-rates").hidden = !losses.length;
  page.groups.forEach((group, i) => {
    const label = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: true });
    const swatch = Object.assign(document.createElement("span"), { className: "swatch" });
    swatch.style.background = group.color;
    label.append(box, " ", swatch, group.label);
    box.addEventListener("change", () => { box.checked ? shown.add(i) : shown.delete(i); all(); });
    byId("legend").append(label);
  });
  byId("curve-metric").addEventListener("change", curves);
  document.querySelectorAll("input[name=axis]").forEach((input) => input.addEventListener("change", curves));
  byId("map-name").addEventListener("change", () => { maps(); profile(); });
  byId("profile-slider").addEventListener("input", profile);
  if (statistics.length) byId("profile-slider").value = byId("profile-slider").max = stepsOf(map()).length - 1;
  let resized;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(all, 150); });
  await all();
  document.body.dataset.drawn = "yes";
}

main();
