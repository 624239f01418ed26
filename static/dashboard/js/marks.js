/**
 * What happened in the stretch that is looked at: changes of the tunables, and events. Pure.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./types.js").PoolEvent} PoolEvent
 * @typedef {import("./types.js").TunableSpec} TunableSpec
 * @typedef {import("./types.js").VersionInfo} VersionInfo
 * @typedef {import("./source.js").Source} Source
 * @typedef {import("./mark_lines.js").Telling} Telling
 * @typedef {import("./markers.js").Marker & {kind: "version", tellings: Telling[]}} VersionMark
 * @typedef {{kind: "alert" | "event", at: number, short: string, lines: string[]}} EventMark
 * @typedef {EventMark | VersionMark} Mark
 */
import { linesAbout, wholeOf } from "./mark_lines.js";
import { labelOf, labelsOf, markersOf } from "./markers.js";
import { lineOf } from "./version_lines.js";

const MOST_TOLD_VERSIONS = 20;
const MOST_LINES = 6;
/** What an event is called, and in how few letters. */
const KINDS = /** @type {Record<string, [name: string, short: string]>} */ ({
  engine_joined: ["engine joined", "joined"],
  engine_left: ["engine left", "left"],
  engine_lost: ["engine lost", "lost"],
  monitor_took_over: ["another monitor took over", "monitor"],
  redis_restarted: ["Redis restarted", "Redis"],
  alert: ["alert", "alert"],
  alert_over: ["alert over", "over"],
  guardrail: ["guardrail", "guardrail"],
  canary: ["canary", "canary"],
});
const ALERTS = ["alert", "engine_lost", "guardrail"];

/** All that is known, newest first. @param {State} state @returns {VersionInfo[]} */
export function knownVersions({ versions, pastVersions }) {
  const numbers = new Set(versions.map(({ number }) => number));
  return [...versions, ...pastVersions.filter(({ number }) => !numbers.has(number))];
}

/**
 * Oldest first.
 *
 * @param {Source} source
 * @param {State} state
 * @returns {Mark[]}
 */
export function marksOf({ versions, stretch, step }, state) {
  const specs = state.hello?.tunables ?? [];
  const known = knownVersions(state);
  const changes = markersOf(versions(), { since: stretch.from })
    .filter(({ at }) => at <= stretch.to)
    .map((marker) => {
      const first = Math.max(marker.first, marker.version - MOST_TOLD_VERSIONS + 1);
      const numbers = Array.from({ length: marker.version - first + 1 }, (_, index) => first + index);
      const tellings = numbers.map((number) => tellingOf(number, { known, specs }));
      return { ...marker, at: exactly(marker, { known, step }), kind: /** @type {const} */ ("version"), tellings };
    });
  const events = state.events.filter(({ at }) => at >= stretch.from && at <= stretch.to).map(eventMark);
  return [...changes, ...events].sort((one, other) => one.at - other.at);
}

/**
 * When a change came: in a past, which has a place every few minutes only, the moment that it was stored.
 *
 * @param {import("./markers.js").Marker} marker
 * @param {{known: VersionInfo[], step: number}} context
 */
function exactly({ at, version }, { known, step }) {
  const storedAt = Date.parse(known.find(({ number }) => number === version)?.created_at ?? "") / 1000;
  return step > 1 && Math.abs(storedAt - at) <= step ? storedAt : at;
}

/** @param {number} number @param {{known: VersionInfo[], specs: TunableSpec[]}} context @returns {Telling} */
function tellingOf(number, { known, specs }) {
  const info = known.find((version) => version.number === number);
  const changes = Object.entries(info?.changes ?? {}).map(([name, [from, to]]) => lineOf({ name, from, to }, specs));
  return { number, author: info?.author ?? "", changes, reason: info?.reason ?? "" };
}

/** @param {PoolEvent} event @returns {EventMark} */
function eventMark({ at, kind, subject, text }) {
  const [name, short] = KINDS[kind] ?? [kind.replaceAll("_", " "), kind.split("_")[0]];
  const about = subject === "" ? name : `${name}: ${subject}`;
  return {
    kind: ALERTS.includes(kind) ? "alert" : "event",
    at,
    short,
    lines: text === "" ? [about] : [about, text],
  };
}

/**
 * What there is to read of the marks around a moment, in a few lines.
 *
 * @param {Mark[]} marks
 * @param {{second: number, reach: number}} where both in seconds
 * @returns {string[]}
 */
export function linesNear(marks, { second, reach }) {
  const near = marks.filter((mark) => Math.abs(mark.at - second) <= reach);
  const told = near.flatMap((mark) => (mark.kind === "version" ? [] : mark.lines)).slice(-MOST_LINES + 1);
  const tellings = near.flatMap((mark) => (mark.kind === "version" ? mark.tellings : []));
  return [...linesAbout(tellings, MOST_LINES - told.length), ...told];
}

/** Everything that is known of one, line by line. @param {Mark} mark @returns {string[]} */
export function linesOf(mark) {
  return mark.kind === "version" ? mark.tellings.flatMap(wholeOf) : mark.lines;
}

/**
 * The marks' labels, at least `room` apart within their kind; null where one has none. A run of events is labelled by
 * its last and how many stand before it.
 *
 * @param {Mark[]} marks oldest first
 * @param {number} room in seconds
 * @returns {(string | null)[]}
 */
export function labelsOfMarks(marks, room) {
  const versions = /** @type {VersionMark[]} */ (marks.filter(({ kind }) => kind === "version"));
  const events = /** @type {EventMark[]} */ (marks.filter(({ kind }) => kind !== "version"));
  const ofVersions = labelsOf(versions, room);
  const ofEvents = eventLabels(events, room);
  return marks.map((mark) =>
    mark.kind === "version" ? ofVersions[versions.indexOf(mark)] : ofEvents[events.indexOf(mark)],
  );
}

/** @param {EventMark[]} events @param {number} room */
function eventLabels(events, room) {
  /** @type {(string | null)[]} */
  const labels = events.map(() => null);
  let last = events.length - 1;
  for (let index = last; index >= 0; index -= 1) {
    if (index > 0 && events[last].at - events[index - 1].at < room) continue;
    labels[last] = last === index ? events[last].short : `${events[last].short} +${last - index}`;
    last = index - 1;
  }
  return labels;
}

/** How many characters the longest label has. @param {Mark[]} marks */
export function longestLabel(marks) {
  return Math.max(
    0,
    ...marks.map((mark) => (mark.kind === "version" ? labelOf(mark.version - 1, mark.version) : mark.short).length),
  );
}
