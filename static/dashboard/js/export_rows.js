/**
 * What charts show, as the rows of a table. Pure.
 *
 * @typedef {import("./panel.js").Panel} Panel
 */

/**
 * A row a place, a column a series; times in ISO 8601, UTC, figures as they were measured.
 *
 * @param {Pick<Panel, "spec" | "title" | "series">[]} panels
 * @returns {(string | number | null)[][]}
 */
export function rowsOf(panels) {
  const columns = panels.flatMap(({ spec, title, series }) =>
    spec.series.map(({ label }, index) => ({
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
