/**
 * What the charts show, as a picture or a table to keep: the picture has what is open on the page, the table all that
 * there is of the time in view.
 *
 * @typedef {import("./board.js").Snapshot} Snapshot
 * @typedef {import("./source.js").Source} Source
 */
import { csvOf } from "./csv.js";
import { byId, create, setText, show } from "./dom.js";
import { leftOutWords, offerWords, rowsOf, titleWords } from "./export_rows.js";
import { clock } from "./format.js";
import { paintPicture } from "./picture.js";
import { readColors } from "./theme.js";

const EVERYTHING = "";

/**
 * @param {object} parts
 * @param {string} parts.pool
 * @param {() => Snapshot} parts.snapshot
 */
export function createExports({ pool, snapshot }) {
  const menu = byId("export");
  const what = /** @type {HTMLSelectElement} */ (byId("export-what"));
  const offered = byId("export-offered");
  const problem = byId("export-problem");

  menu.addEventListener("toggle", (event) => {
    if (/** @type {ToggleEvent} */ (event).newState !== "open") return;
    show(problem, false);
    const chosen = what.value;
    const { tables } = snapshot();
    what.replaceChildren(
      create("option", { value: EVERYTHING, text: "all charts" }),
      ...tables.map((table) => create("option", { value: table.spec.id, text: titleWords(table) })),
    );
    what.value = tables.some(({ spec }) => spec.id === chosen) ? chosen : EVERYTHING;
    setText(offered, offerWords(tables));
  });
  what.addEventListener("change", () => show(problem, false));

  /** @template {{spec: {id: string}}} Each @param {Each[]} all */
  const chosenOf = (all) => all.filter(({ spec }) => what.value === EVERYTHING || spec.id === what.value);

  byId("export-png").addEventListener("click", () => {
    const { open, tables, source } = snapshot();
    const panels = chosenOf(open);
    show(problem, panels.length === 0);
    if (panels.length === 0) {
      setText(problem, "It is not open: unfold its group, or tick it under Charts. The table has it all the same.");
      return;
    }
    const { from, to } = source.stretch;
    const title = `${pool} · ${new Date(from * 1000).toDateString()} ${clock(from)} – ${clock(to)}`;
    const note = leftOutWords(chosenOf(tables));
    const colors = readColors(["surface", "ink", "ink-quiet"]);
    const name = nameOf(pool, what.value || "charts", source);
    paintPicture(panels, { title, note, colors }).toBlob((blob) => blob && offer(blob, `${name}.png`));
  });
  byId("export-csv").addEventListener("click", () => {
    show(problem, false);
    const { tables, source } = snapshot();
    const blob = new Blob([csvOf(rowsOf(chosenOf(tables)))], { type: "text/csv" });
    offer(blob, `${nameOf(pool, what.value || "charts", source)}.csv`);
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
