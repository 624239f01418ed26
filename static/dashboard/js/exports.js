/**
 * What the charts show, as a picture or a table to keep.
 *
 * @typedef {import("./panel.js").Panel} Panel
 * @typedef {import("./source.js").Source} Source
 */
import { csvOf } from "./csv.js";
import { byId, create, setText, show } from "./dom.js";
import { rowsOf } from "./export_rows.js";
import { clock } from "./format.js";
import { paintPicture } from "./picture.js";
import { readColors } from "./theme.js";

const EVERYTHING = "";

/**
 * @param {object} parts
 * @param {string} parts.pool
 * @param {() => {panels: Panel[], source: Source}} parts.snapshot what is neither hidden nor folded away
 */
export function createExports({ pool, snapshot }) {
  const menu = byId("export");
  const what = /** @type {HTMLSelectElement} */ (byId("export-what"));
  const problem = byId("export-problem");

  menu.addEventListener("toggle", (event) => {
    if (/** @type {ToggleEvent} */ (event).newState !== "open") return;
    show(problem, false);
    const chosen = what.value;
    const { panels } = snapshot();
    what.replaceChildren(
      create("option", { value: EVERYTHING, text: `all ${panels.length} charts that are open` }),
      ...panels.map(({ spec, title }) => create("option", { value: spec.id, text: title })),
    );
    what.value = panels.some(({ spec }) => spec.id === chosen) ? chosen : EVERYTHING;
  });

  function chosen() {
    const { panels, source } = snapshot();
    const wanted = panels.filter(({ spec }) => what.value === EVERYTHING || spec.id === what.value);
    if (wanted.length === 0) {
      setText(problem, "No chart is open: unfold a group, or tick one under Charts.");
      show(problem, true);
      return null;
    }
    return { panels: wanted, source, name: nameOf(pool, what.value || "charts", source) };
  }

  byId("export-png").addEventListener("click", () => {
    const found = chosen();
    if (found === null) return;
    const { stretch } = found.source;
    const day = new Date(stretch.from * 1000).toDateString();
    const title = `${pool} · ${day} ${clock(stretch.from)} – ${clock(stretch.to)}`;
    const colors = readColors(["surface", "ink", "ink-quiet"]);
    paintPicture(found.panels, { title, colors }).toBlob((blob) => blob && offer(blob, `${found.name}.png`));
  });
  byId("export-csv").addEventListener("click", () => {
    const found = chosen();
    if (found !== null) offer(new Blob([csvOf(rowsOf(found.panels))], { type: "text/csv" }), `${found.name}.csv`);
  });
}

/** @param {string} pool @param {string} what @param {Source} source */
function nameOf(pool, what, { stretch }) {
  const at = new Date(stretch.to * 1000).toISOString().slice(0, 19).replaceAll(":", "");
  return `${pool}-${what}-${at}Z`.replaceAll(/[^\w.-]/g, "_");
}

/** Has the browser keep it. @param {Blob} blob @param {string} name */
function offer(blob, name) {
  const url = URL.createObjectURL(blob);
  create("a", { href: url, download: name }).click();
  // Taken up by then.
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
