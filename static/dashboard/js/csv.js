/** Tables as CSV (RFC 4180) that a spreadsheet reads and runs nothing of. Pure. */

const STARTS_A_FORMULA = /^[=+\-@\t\r]/;
const NEEDS_QUOTES = /[",\r\n]/;

/**
 * @param {(string | number | null)[][]} rows the first names the columns; null and what is no number are left empty
 * @returns {string}
 */
export function csvOf(rows) {
  return rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

/** @param {string | number | null} value */
function cell(value) {
  if (typeof value === "number") return Number.isFinite(value) ? String(Number(value.toPrecision(12))) : "";
  if (value === null) return "";
  // A text that a spreadsheet would compute is kept from it by an apostrophe; numbers are numbers.
  const text = STARTS_A_FORMULA.test(value) ? `'${value}` : value;
  return NEEDS_QUOTES.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
