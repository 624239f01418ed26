/**
 * The two bands above the lanes: how long each step took and for what, and its tokens against the budget.
 *
 * @typedef {import("./steps_paint.js").Scene} Scene
 * @typedef {import("./steps_paint.js").Palette} Palette
 * @typedef {import("./steps_layout.js").Column} Column
 * @typedef {import("./steps_rows.js").Row} Row
 * @typedef {import("./steps_brush.js").Brush} Brush
 */
import { milliseconds } from "./format.js";
import { PHASES } from "./steps_rows.js";

export const TIMES_HEIGHT = 64;
export const TOKENS_HEIGHT = 44;
export const BAND_GAP = 10;
const CAPTION_HEIGHT = 13;
const LEAST_CAPTIONED = 120;

/** Parts of a step's time, from the bottom up, and the colour of each. */
export const PHASE_COLORS = /** @type {const} */ ({
  forward: "chart-p95",
  sample: "chart-prompt",
  prepare: "chart-p99",
  schedule: "chart-wait",
  update: "line-strong",
});

/**
 * Where a band of these values ends: at the largest, but not where one in a hundred would flatten all others.
 *
 * @param {number[]} values
 */
export function scaleTop(values) {
  if (values.length === 0) return 1;
  const ordered = [...values].sort((one, other) => one - other);
  const usual = ordered[Math.floor((ordered.length - 1) * 0.98)];
  const largest = ordered[ordered.length - 1];
  return Math.max(1e-6, usual > 0 && largest > 2 * usual ? 1.25 * usual : largest);
}

/** @param {Brush} brush @param {Scene} scene @param {Column[]} columns */
export function paintTimes(brush, { view, palette }, columns) {
  const { columnWidth, width } = view;
  const bar = barWidth(columnWidth);
  const top = scaleTop(columns.flatMap(({ row }) => (row === null ? [] : [row.totalMs])));
  const scale = (TIMES_HEIGHT - CAPTION_HEIGHT) / top;
  const tops = columns.map(() => TIMES_HEIGHT);
  for (const [phase, color] of Object.entries(PHASE_COLORS)) {
    const index = PHASES.indexOf(/** @type {typeof PHASES[number]} */ (phase));
    brush.fill(palette[color], () => {
      columns.forEach(({ row }, place) => {
        if (row === null) return;
        const height = Math.max(0, Math.min(row.phasesMs[index] * scale, tops[place] - CAPTION_HEIGHT));
        tops[place] -= height;
        brush.context.rect(place * columnWidth, tops[place], bar, height);
      });
    });
  }
  brush.bar(palette.line, 0, TIMES_HEIGHT, width, 1);
  caption(brush, { palette, width, y: 10, words: `step time, to ${milliseconds(top)}` });
}

/** @param {Brush} brush @param {Scene} scene @param {Column[]} columns */
export function paintTokens(brush, { view, palette }, columns) {
  const { columnWidth, width } = view;
  const bar = barWidth(columnWidth);
  const bottom = TIMES_HEIGHT + BAND_GAP + TOKENS_HEIGHT;
  const { most, budget, scale } = tokenScale(columns);
  /** @param {string} color @param {(row: Row) => [number, number]} partOf what is below it, and how much it is */
  const stacked = (color, partOf) =>
    brush.fill(color, () => {
      columns.forEach(({ row }, place) => {
        if (row === null) return;
        const [below, tokens] = partOf(row);
        brush.context.rect(place * columnWidth, bottom - (below + tokens) * scale, bar, tokens * scale);
      });
    });
  stacked(palette["chart-load"], (row) => [0, row.decodeTokens]);
  stacked(palette["chart-prompt"], (row) => [row.decodeTokens, row.prefillTokens]);
  brush.hatch(palette["ink-quiet"], () => {
    columns.forEach(({ row }, place) => {
      if (row === null || row.paddedTokens === 0) return;
      const below = (row.decodeTokens + row.prefillTokens) * scale;
      const height = Math.min(row.paddedTokens * scale, TOKENS_HEIGHT - CAPTION_HEIGHT - below);
      brush.context.rect(place * columnWidth, bottom - below - height, columnWidth, height);
    });
  });
  if (budget.isDrawn) {
    brush.fill(palette["chart-marker"], () => {
      columns.forEach(({ row }, place) => {
        if (row !== null) brush.context.rect(place * columnWidth, bottom - row.budget * scale, columnWidth, 1);
      });
    });
  }
  brush.bar(palette.line, 0, bottom, width, 1);
  const about = budget.largest === 0 ? "" : `, budget ${budget.largest}${budget.isDrawn ? "" : " (far above)"}`;
  caption(brush, { palette, width, y: bottom - TOKENS_HEIGHT + 10, words: `tokens, to ${most}${about}` });
}

/**
 * By what is computed: what is padded is often far more, and is drawn as far as there is room.
 *
 * @param {Column[]} columns
 */
function tokenScale(columns) {
  let most = 1;
  let largest = 0;
  for (const { row } of columns) {
    if (row === null) continue;
    most = Math.max(most, row.prefillTokens + row.decodeTokens);
    largest = Math.max(largest, row.budget);
  }
  // The budget is drawn where it is not so far above that the bars would be lost below it.
  const isDrawn = largest > 0 && largest <= 4 * most;
  const scale = (TOKENS_HEIGHT - CAPTION_HEIGHT) / (isDrawn ? Math.max(largest, most) : most);
  return { most, budget: { largest, isDrawn }, scale };
}

/** @param {number} columnWidth */
function barWidth(columnWidth) {
  return columnWidth < 3 ? columnWidth : columnWidth - 1;
}

/** @param {Brush} brush @param {{palette: Palette, width: number, y: number, words: string}} parts */
function caption(brush, { palette, width, y, words }) {
  if (width > LEAST_CAPTIONED) brush.write(palette["chart-ink"], words, 4, y, palette.surface);
}
