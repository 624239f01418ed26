/**
 * Marks as the annotation plugin draws them: a line each, told apart by colour, dashes and where its label stands.
 *
 * @typedef {import("./marks.js").Mark} Mark
 * @typedef {import("./chart_options.js").Palette} Palette
 */
import { labelsOfMarks, longestLabel } from "./marks.js";
import { labelOf } from "./markers.js";

const FONT_SIZE = 10;
const PADDING = 3;
const GAP = 4;
const DASHES = { version: [3, 3], event: [1, 3], alert: [] };

/**
 * @param {Mark[]} marks
 * @param {{palette: Palette, secondsPerPixel: number, hasRoom: boolean}} look `hasRoom` for labels
 */
export function annotationsOf(marks, { palette, secondsPerPixel, hasRoom }) {
  if (!hasRoom) return marks.map((mark) => lineAt(mark, palette, null));
  const room = 0.6 * FONT_SIZE * longestLabel(marks) + 2 * PADDING + GAP;
  const labels = labelsOfMarks(marks, room * secondsPerPixel);
  return marks.map((mark, index) => lineAt(mark, palette, labels[index]));
}

/** @param {Mark} mark @param {Palette} palette @param {string | null} label */
function lineAt(mark, palette, label) {
  const color = { version: palette.marker, event: palette.event, alert: palette.alert }[mark.kind];
  return {
    type: "line",
    scaleID: "x",
    value: mark.at,
    borderColor: color,
    borderWidth: 1,
    borderDash: DASHES[mark.kind],
    label: {
      display: label !== null,
      content: label ?? (mark.kind === "version" ? labelOf(mark.first, mark.version) : mark.short),
      // Changes at the head, events at the foot: they do not cover one another.
      position: mark.kind === "version" ? "start" : "end",
      color,
      backgroundColor: palette.ground,
      font: { size: FONT_SIZE, weight: "normal" },
      padding: { x: PADDING, y: 1 },
      borderRadius: 2,
    },
  };
}
