/**
 * The latest columns, numbered from the first that ever was: what a page scrolls back over.
 *
 * @typedef {import("./steps_layout.js").Column} Column
 * @typedef {import("./steps_rows.js").Batch} Batch
 * @typedef {import("./steps_rows.js").Row} Row
 */
import { createLayout } from "./steps_layout.js";
import { createRowReader } from "./steps_rows.js";

export const RING_COLUMNS = 1200;
const SPARE = 400;

/**
 * Owns the columns, oldest first; those beyond `capacity` go.
 *
 * @param {readonly string[]} fields what each place of a row means
 * @param {{capacity?: number}} [options]
 */
export function createStepsRing(fields, { capacity = RING_COLUMNS } = {}) {
  const reader = createRowReader(fields);
  const layout = createLayout();
  /** @type {Column[]} */
  let columns = [];
  let first = 0;
  let numMissing = 0;
  let numDropped = 0;

  return {
    /** Takes in what came; gives the number of columns that are new. @param {Batch[]} batches */
    add(batches) {
      let numNew = 0;
      for (const batch of batches) {
        numDropped = Math.max(numDropped, batch.num_dropped);
        for (const row of reader.read(batch)) {
          for (const column of layout.add(row)) {
            columns.push(column);
            numMissing += column.missing;
            numNew += 1;
          }
        }
      }
      // Seldom, so that it costs nothing to speak of.
      if (columns.length > capacity + SPARE) {
        first += columns.length - capacity;
        columns = columns.slice(-capacity);
      }
      return numNew;
    },
    /**
     * The column of that number; null where it is gone, or not there yet.
     *
     * @param {number} number
     * @returns {Column | null}
     */
    at: (number) => columns[number - first] ?? null,
    /** The number of the oldest column that is kept, and of the one after the newest. */
    get first() {
      return first;
    },
    get end() {
      return first + columns.length;
    },
    get lastStep() {
      return layout.lastStep;
    },
    /** Steps that were lost on the way here, and those that the engine never published. */
    get numMissing() {
      return numMissing;
    },
    get numDropped() {
      return numDropped;
    },
    /** The rows of all columns that are steps. @returns {Row[]} */
    rows() {
      return columns.flatMap(({ row }) => (row === null ? [] : [row]));
    },
  };
}

/** @typedef {ReturnType<typeof createStepsRing>} StepsRing */
