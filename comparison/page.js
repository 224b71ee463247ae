"use strict";
// Puts the packed numbers into the packed drawing library, as the switches say. Nothing comes from a network.

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
    const value = (row) => row.cells[column].dataset.sort ?? row.cells[column].textContent;
    const compare = (a, b) => a === b ? 0 : a === "" ? 1 : b === "" ? -1
      : (up ? 1 : -1) * (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
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
    const width = spec.facet ? {} : { width: Math.max(240, Math.min(900, byId(id).clientWidth - 90)) };
    const scale = spec.encoding?.color?.scale ? { encoding: { ...spec.encoding, color: { ...spec.encoding.color, legend: null } } } : {};
    return vegaEmbed(byId(id), { ...spec, ...width, ...scale, data, config: page.style }, { renderer: "svg", actions: false });
  };

  function curves() {
    const metric = byId("curve-metric").value;
    const axis = document.querySelector("input[name=axis]:checked").value;
    const spec = structuredClone(page.specs.curves);
    Object.assign(spec.encoding.x, { field: axis, title: page.axes[axis] });
    spec.layer.forEach((layer) => { layer.encoding.y.title = metric; });
    const rows = page.curves[metric].flatMap((band, i) => !band ? [] : band.step.map((step, k) => ({
      group: page.groups[i].title, step, tokens: band.tokens[k], seconds: band.seconds[k],
      mean: band.mean[k], low: band.low[k], high: band.high[k],
    })));
    return draw("curves", spec, rows);
  }

  const map = () => page.maps[byId("map-name").selectedIndex];

  function maps() {
    const { spec, steps, blocks, values } = map();
    const rows = values.flatMap((group, i) => group.flatMap((line, b) => line.map((value, k) => ({
      group: page.groups[i].title, block: blocks[b], step: steps[k], value,
    })))).filter((row) => row.value !== null);
    const columns = Math.max(1, Math.floor((byId("map").clientWidth - 110) / 215));
    return draw("map", { ...spec, columns: Math.min(columns, Math.max(1, shown.size)) }, rows);
  }

  function profile() {
    const { name, steps, blocks, values } = map();
    const slider = byId("profile-slider");
    slider.max = steps.length - 1;
    const k = Math.min(slider.value, steps.length - 1);
    byId("profile-step").textContent = steps[k];
    slider.setAttribute("aria-valuetext", `step ${steps[k]}`);
    const spec = structuredClone(page.specs.profile);
    spec.encoding.y.title = name;
    const rows = values.flatMap((group, i) => group.map((line, b) => ({
      group: page.groups[i].title, block: blocks[b], value: line[k],
    }))).filter((row) => row.value !== null);
    return draw("profile", spec, rows);
  }

  const rates = () => draw("rates", page.specs.rates, page.rates);
  const figures = [curves];
  if (page.maps.length) figures.push(maps, profile);
  if (page.rates.length) figures.push(rates);
  const all = () => Promise.all(figures.map((figure) => figure()));

  const options = (id, names) => byId(id).append(...names.map((name) => new Option(name, name)));
  options("curve-metric", Object.keys(page.curves));
  options("map-name", page.maps.map((one) => one.name));
  byId("map-name").selectedIndex = Math.max(0, page.maps.findIndex((one) => one.name === "act.rms/*.mlp"));
  byId("s-maps").hidden = !page.maps.length;
  byId("s-rates").hidden = !page.rates.length;
  page.groups.forEach((group, i) => {
    const label = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: true });
    const swatch = Object.assign(document.createElement("span"), { className: "swatch" });
    swatch.style.background = group.color;
    label.append(box, " ", swatch, group.title);
    box.addEventListener("change", () => { box.checked ? shown.add(i) : shown.delete(i); all(); });
    byId("legend").append(label);
  });
  byId("curve-metric").addEventListener("change", curves);
  document.querySelectorAll("input[name=axis]").forEach((input) => input.addEventListener("change", curves));
  byId("map-name").addEventListener("change", () => { maps(); profile(); });
  byId("profile-slider").addEventListener("input", profile);
  if (page.maps.length) byId("profile-slider").value = byId("profile-slider").max = map().steps.length - 1;
  let resized;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(all, 150); });
  await all();
  document.body.dataset.drawn = "yes";
}

main();
