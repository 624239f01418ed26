/**
 * Charts painted into one picture, each with its title, legend and figures.
 *
 * @typedef {import("./panel.js").Panel} Panel
 *
 * @typedef {object} Legend where it begins, from its panel's left edge, and in which line
 * @property {number} index of its series
 * @property {string} text
 * @property {number} left
 * @property {number} line
 */
import { DASHES, WIDTHS } from "./chart_options.js";

const HEAD = 20;
const LEGEND_LINE = 14;
const SWATCH = 21;
const TITLE = 58;
const GAP = 16;
const LEAST_ROOM = 1100;
const LEAST_WIDTH = 480;
const FONT = "system-ui, sans-serif";
const SMALL = `11px ${FONT}`;

/**
 * @param {Panel[]} panels
 * @param {{title: string, note: string, colors: Record<"surface" | "ink" | "ink-quiet", string>}} look `note` stands
 *   under the title
 * @returns {HTMLCanvasElement}
 */
export function paintPicture(panels, { title, note, colors }) {
  const picture = document.createElement("canvas");
  const pen = picture.getContext("2d");
  if (pen === null) return picture;
  pen.font = SMALL;
  const legends = panels.map((panel) => legendsOf(panel, (text) => pen.measureText(text).width));
  const heads = legends.map((each) => HEAD + LEGEND_LINE * ((each.at(-1)?.line ?? 0) + 1));
  const sizes = panels.map(({ canvas }, index) => ({
    width: canvas.clientWidth,
    height: canvas.clientHeight + heads[index],
  }));
  const { places, width, height } = arranged(sizes);
  const scale = devicePixelRatio;
  [picture.width, picture.height] = [Math.round(width * scale), Math.round(height * scale)];
  pen.scale(scale, scale);
  pen.fillStyle = colors.surface;
  pen.fillRect(0, 0, width, height);
  pen.fillStyle = colors.ink;
  pen.font = `600 15px ${FONT}`;
  pen.fillText(title, GAP, 24);
  pen.fillStyle = colors["ink-quiet"];
  pen.font = `12px ${FONT}`;
  pen.fillText(note, GAP, 42, width - 2 * GAP);
  panels.forEach((panel, index) => {
    const { left, top } = places[index];
    paintHead(pen, panel, { left, top, colors });
    for (const legend of legends[index]) paintLegend(pen, panel, { legend, left, top, color: colors["ink-quiet"] });
    pen.drawImage(panel.canvas, left, top + heads[index], sizes[index].width, sizes[index].height - heads[index]);
  });
  return picture;
}

/**
 * Row by row, as many beside each other as there is room for.
 *
 * @param {{width: number, height: number}[]} sizes
 */
function arranged(sizes) {
  const room = Math.max(LEAST_ROOM, ...sizes.map(({ width }) => width));
  let [left, top, rowHeight] = [0, TITLE, 0];
  const places = sizes.map(({ width, height }) => {
    if (left > 0 && left + width > room) {
      [left, top] = [0, top + rowHeight + GAP];
      rowHeight = 0;
    }
    const place = { left: GAP + left, top };
    left += width + GAP;
    rowHeight = Math.max(rowHeight, height);
    return place;
  });
  const right = Math.max(LEAST_WIDTH, ...places.map((place, index) => place.left + sizes[index].width));
  return { places, width: right + GAP, height: top + rowHeight + GAP };
}

/**
 * In as many lines as they need beside their chart's width.
 *
 * @param {Panel} panel
 * @param {(text: string) => number} widthOf
 * @returns {Legend[]}
 */
function legendsOf({ labels, figures, canvas }, widthOf) {
  let [left, line] = [0, 0];
  return labels.map((label, index) => {
    const text = `${label} ${figures[index].textContent}`;
    const width = SWATCH + widthOf(text);
    if (left > 0 && left + width > canvas.clientWidth) [left, line] = [0, line + 1];
    const legend = { index, text, left, line };
    left += width + 12;
    return legend;
  });
}

/**
 * @param {CanvasRenderingContext2D} pen
 * @param {Panel} panel
 * @param {{left: number, top: number, colors: Record<"ink" | "ink-quiet", string>}} place
 */
function paintHead(pen, { title, objective }, { left, top, colors }) {
  pen.fillStyle = colors.ink;
  pen.font = `600 13px ${FONT}`;
  pen.fillText(title, left, top + 12);
  const after = left + pen.measureText(title).width + 12;
  pen.font = SMALL;
  pen.fillStyle = colors["ink-quiet"];
  if (!objective.hidden) pen.fillText(objective.textContent ?? "", after, top + 12);
}

/**
 * @param {CanvasRenderingContext2D} pen
 * @param {Panel} panel
 * @param {{legend: Legend, left: number, top: number, color: string}} place
 */
function paintLegend(pen, { spec, legends }, { legend, left, top, color }) {
  const { line } = spec.series[legend.index];
  const [x, y] = [left + legend.left, top + HEAD + LEGEND_LINE * legend.line];
  pen.strokeStyle = getComputedStyle(legends[legend.index]).borderBottomColor;
  pen.lineWidth = WIDTHS[line];
  pen.setLineDash(DASHES[line]);
  pen.beginPath();
  pen.moveTo(x, y + 4);
  pen.lineTo(x + 16, y + 4);
  pen.stroke();
  pen.setLineDash([]);
  pen.font = SMALL;
  pen.fillStyle = color;
  pen.fillText(legend.text, x + SWATCH, y + 8);
}
