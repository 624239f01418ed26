/**
 * Days of usage as series, the oldest first.
 *
 * @typedef {{day: string, requests: number, prompt: number, completion: number}} Day
 */

/** What a table's rows say, in their order. @param {ParentNode} table @returns {Day[]} */
export function readDays(table) {
  const rows = /** @type {HTMLElement[]} */ ([...table.querySelectorAll("[data-day]")]);
  return rows.map(({ dataset }) => ({
    day: dataset.day ?? "",
    requests: Number(dataset.requests),
    prompt: Number(dataset.prompt),
    completion: Number(dataset.completion),
  }));
}

/** @param {Day[]} newestFirst */
export function daysOf(newestFirst) {
  const days = [...newestFirst].reverse();
  return {
    labels: days.map(({ day }) => day.slice(5)),
    requests: days.map(({ requests }) => requests),
    prompt: days.map(({ prompt }) => prompt),
    completion: days.map(({ completion }) => completion),
  };
}
