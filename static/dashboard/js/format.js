/**
 * Figures as people read them, in English, with the units they have. `–` stands for what is not known.
 *
 * @typedef {import("./types.js").TunableSpec} TunableSpec
 * @typedef {import("./types.js").TunableValue} TunableValue
 */

/** @typedef {number | null | undefined} Figure */

export const NOTHING = "–";
/** In place of an empty text; no name has brackets. */
const EMPTY = "(empty)";

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const PLAIN = new Intl.NumberFormat("en", { maximumSignificantDigits: 12 });
const BINARY_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
const THOUSANDS = ["", "k", "M", "G"];
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** `1,234` @param {Figure} value @returns {string} */
export function count(value) {
  return isKnown(value) ? GROUPED.format(value) : NOTHING;
}

/** `9,876`, `12.3k`, `1.23M` @param {Figure} value @returns {string} */
export function compact(value) {
  if (!isKnown(value)) return NOTHING;
  return Math.abs(value) < 9999.5 ? count(value) : scaled(value, { step: 1000, units: THOUSANDS, gap: "" });
}

/** `12.3k tokens` @param {Figure} value @returns {string} */
export function tokens(value) {
  return isKnown(value) ? `${compact(value)} ${Math.round(value) === 1 ? "token" : "tokens"}` : NOTHING;
}

/** A rate without its unit: `3.4`, `412`, `12.3k` @param {Figure} value @returns {string} */
export function rate(value) {
  if (!isKnown(value)) return NOTHING;
  return value > 0 && value < 9.95 ? value.toFixed(1) : compact(value);
}

/** `812 MiB`, `1.25 GiB` @param {Figure} value @returns {string} */
export function bytes(value) {
  return isKnown(value) ? scaled(value, { step: 1024, units: BINARY_UNITS, gap: " " }) : NOTHING;
}

/** `612 W` @param {Figure} value @returns {string} */
export function watts(value) {
  return isKnown(value) ? `${count(value)} W` : NOTHING;
}

/** `64 °C` @param {Figure} value @returns {string} */
export function celsius(value) {
  return isKnown(value) ? `${count(value)} °C` : NOTHING;
}

/** `43%`; what is little and not nothing is `<1%` @param {Figure} ratio @returns {string} */
export function percent(ratio) {
  if (!isKnown(ratio)) return NOTHING;
  return ratio > 0 && ratio < 0.005 ? "<1%" : `${(ratio * 100).toFixed(0)}%`;
}

/** `0.42 ms`, `12.3 ms`, `1.23 s`, `2 m 05 s`, `1 h 02 m` @param {Figure} value in seconds @returns {string} */
export function seconds(value) {
  if (!isKnown(value)) return NOTHING;
  if (value === 0) return "0 ms";
  if (value < 0.9995) return `${threeDigits(value * 1000)} ms`;
  return value < 59.95 ? `${threeDigits(value)} s` : duration(value);
}

/** As `seconds`. @param {Figure} value in milliseconds @returns {string} */
export function milliseconds(value) {
  return seconds(isKnown(value) ? value / 1000 : null);
}

/** Whole seconds: `42 s`, `2 m 05 s`, `3 h 12 m`, `2 d 4 h` @param {Figure} value in seconds @returns {string} */
export function duration(value) {
  if (!isKnown(value)) return NOTHING;
  const whole = Math.max(0, Math.round(value));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} m ${twoDigits(whole % 60)} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 1440) return `${Math.floor(minutes / 60)} h ${twoDigits(minutes % 60)} m`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

/** `just now`, `12 s ago`, `3 m ago`, `2 h ago`, `5 d ago` @param {Figure} value in seconds @returns {string} */
export function age(value) {
  if (!isKnown(value)) return NOTHING;
  if (value < 1) return "just now";
  if (value < 60) return `${Math.floor(value)} s ago`;
  if (value < 3600) return `${Math.floor(value / 60)} m ago`;
  return value < 86_400 ? `${Math.floor(value / 3600)} h ago` : `${Math.floor(value / 86_400)} d ago`;
}

/** The local time of day, `14:03:12` @param {Figure} unixSeconds @returns {string} */
export function clock(unixSeconds) {
  if (!isKnown(unixSeconds)) return NOTHING;
  return `${clockShort(unixSeconds)}:${twoDigits(new Date(unixSeconds * 1000).getSeconds())}`;
}

/** `14:03` @param {Figure} unixSeconds @returns {string} */
export function clockShort(unixSeconds) {
  if (!isKnown(unixSeconds)) return NOTHING;
  const date = new Date(unixSeconds * 1000);
  return `${twoDigits(date.getHours())}:${twoDigits(date.getMinutes())}`;
}

/**
 * A moment in local time: `14:03:12` where it is of today, `7 Mar 14:03` of this year, otherwise `7 Mar 2024`.
 *
 * @param {string} iso ISO 8601
 * @param {number} [now] milliseconds
 * @returns {string}
 */
export function moment(iso, now = Date.now()) {
  const date = new Date(iso);
  if (Number.isNaN(date.getTime())) return NOTHING;
  const today = new Date(now);
  const unixSeconds = date.getTime() / 1000;
  if (date.toDateString() === today.toDateString()) return clock(unixSeconds);
  const day = `${date.getDate()} ${MONTHS[date.getMonth()]}`;
  if (date.getFullYear() !== today.getFullYear()) return `${day} ${date.getFullYear()}`;
  return `${day} ${clockShort(unixSeconds)}`;
}

/** The value alone: `60,000`, `0.02`, `static`, `(empty)` @param {TunableValue | null | undefined} value @returns {string} */
export function plain(value) {
  if (typeof value === "string") return value === "" ? EMPTY : value;
  return isKnown(value) ? PLAIN.format(value) : NOTHING;
}

/**
 * `60,000 ms`; a ratio stands alone.
 *
 * @param {TunableSpec} spec
 * @param {TunableValue | null | undefined} value
 * @returns {string}
 */
export function tunable(spec, value) {
  return `${plain(value)}${unitOf(spec)}`;
}

/**
 * `max_running 32 → 8 sequences`
 *
 * @param {TunableSpec} spec
 * @param {TunableValue | null | undefined} from
 * @param {TunableValue | null | undefined} to
 * @returns {string}
 */
export function diff(spec, from, to) {
  return `${spec.name} ${plain(from)} → ${plain(to)}${unitOf(spec)}`;
}

/** @param {TunableSpec} spec */
function unitOf({ unit }) {
  return unit === "" || unit === "ratio" ? "" : ` ${unit}`;
}

/** @param {Figure} value @returns {value is number} */
function isKnown(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** @param {number} value @param {{step: number, units: string[], gap: string}} scale */
function scaled(value, { step, units, gap }) {
  let power = 0;
  let rest = value;
  // 999.5 would be written with four digits.
  while (Math.abs(rest) >= 999.5 && power < units.length - 1) {
    rest /= step;
    power += 1;
  }
  const digits = power === 0 ? GROUPED.format(rest) : threeDigits(rest);
  return `${digits}${gap}${units[power]}`;
}

/** @param {number} value */
function threeDigits(value) {
  const size = Math.abs(value);
  return value.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

/** @param {number} value */
function twoDigits(value) {
  return String(value).padStart(2, "0");
}
