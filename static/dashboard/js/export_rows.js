/**
 * What charts show, as the rows of a table, and what of them is taken along. Pure.
 *
 * @typedef {import("./board.js").Table} Table
 */

const PLACES = { open: "open", folded: "folded away", hidden: "hidden" };

/**
 * A row a place, a column a series; times in ISO 8601, UTC, figures as they were measured.
 *
 * @param {Pick<Table, "spec" | "title" | "series" | "labels">[]} tables
 * @returns {(string | number | null)[][]}
 */
export function rowsOf(tables) {
  const columns = tables.flatMap(({ spec, title, series, labels }) =>
    labels.map((label, index) => ({
      name: `${title}: ${label}${spec.measure === "seconds" ? " (s)" : ""}`,
      values: new Map([...series[index].x].map((second, place) => [second, series[index].y[place]])),
    })),
  );
  const times = [...new Set(columns.flatMap(({ values }) => [...values.keys()]))].sort((one, other) => one - other);
  return [
    ["time", ...columns.map(({ name }) => name)],
    ...times.map((second) => [
      new Date(second * 1000).toISOString(),
      ...columns.map(({ values }) => values.get(second) ?? null),
    ]),
  ];
}

/** As it is called in a list: `TTFT`, `TTFT (folded away)` @param {Pick<Table, "title" | "place">} table */
export function titleWords({ title, place }) {
  return place === "open" ? title : `${title} (${PLACES[place]})`;
}

/** What a picture and a table of all would hold. @param {Pick<Table, "place">[]} tables */
export function offerWords(tables) {
  const numOpen = tables.filter(({ place }) => place === "open").length;
  return `The picture has what is open (${numOpen}), the table all (${tables.length}).`;
}

/**
 * What is left out of a picture, for whoever sees it without the page; empty where nothing is.
 *
 * @param {Pick<Table, "title" | "place" | "group">[]} tables
 */
export function leftOutWords(tables) {
  const folded = new Set(tables.filter(({ place }) => place === "folded").map(({ group }) => group));
  const hidden = tables.filter(({ place }) => place === "hidden").map(titleWords);
  const words = [...[...folded].map((group) => `${group} (${PLACES.folded})`), ...hidden];
  return words.length === 0 ? "" : `Left out: ${words.join(", ")}.`;
}
