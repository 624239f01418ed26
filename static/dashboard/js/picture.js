/**
 * Charts painted into one picture, each with its title, legend and figures.
 *
 * @typedef {import("./panel.js").Panel} Panel
 */
import { DASHES, WIDTHS } from "./chart_options.js";

const HEAD = 34;
const TITLE = 40;
const GAP = 16;
const FONT = "system-ui, sans-serif";
const MOST_COLUMNS = 3;

/**
 * @param {Panel[]} panels
 * @param {{title: string, colors: Record<"surface" | "ink" | "ink-quiet", string>}} look
 * @returns {HTMLCanvasElement}
 */
export function paintPicture(panels, { title, colors }) {
  const sizes = panels.map(({ canvas }) => ({ width: canvas.clientWidth, height: canvas.clientHeight + HEAD }));
  const numColumns = Math.min(MOST_COLUMNS, Math.ceil(Math.sqrt(panels.length)));
  const columnWidth = Math.max(...sizes.map(({ width }) => width));
  const rowHeight = Math.max(...sizes.map(({ height }) => height));
  const picture = document.createElement("canvas");
  const scale = devicePixelRatio;
  const width = numColumns * (columnWidth + GAP) + GAP;
  const height = TITLE + Math.ceil(panels.length / numColumns) * (rowHeight + GAP) + GAP;
  [picture.width, picture.height] = [Math.round(width * scale), Math.round(height * scale)];
  const pen = picture.getContext("2d");
  if (pen === null) return picture;
  pen.scale(scale, scale);
  pen.fillStyle = colors.surface;
  pen.fillRect(0, 0, width, height);
  pen.fillStyle = colors.ink;
  pen.font = `600 15px ${FONT}`;
  pen.fillText(title, GAP, 26);
  panels.forEach((panel, index) => {
    const left = GAP + (index % numColumns) * (columnWidth + GAP);
    const top = TITLE + Math.floor(index / numColumns) * (rowHeight + GAP);
    paintHead(pen, panel, { left, top, colors });
    pen.drawImage(panel.canvas, left, top + HEAD, sizes[index].width, sizes[index].height - HEAD);
  });
  return picture;
}

/**
 * @param {CanvasRenderingContext2D} pen
 * @param {Panel} panel
 * @param {{left: number, top: number, colors: Record<"ink" | "ink-quiet", string>}} place
 */
function paintHead(pen, { spec, title, element, figures, objective }, { left, top, colors }) {
  pen.fillStyle = colors.ink;
  pen.font = `600 13px ${FONT}`;
  pen.fillText(title, left, top + 12);
  const after = left + pen.measureText(title).width + 12;
  pen.font = `11px ${FONT}`;
  pen.fillStyle = colors["ink-quiet"];
  if (!objective.hidden) pen.fillText(objective.textContent ?? "", after, top + 12);
  const legends = [...element.querySelectorAll("dt")];
  let at = left;
  legends.forEach((legend, index) => {
    const series = spec.series[index];
    pen.strokeStyle = getComputedStyle(legend).borderBottomColor;
    pen.lineWidth = WIDTHS[series?.line ?? "dash"];
    pen.setLineDash(DASHES[series?.line ?? "dash"]);
    pen.beginPath();
    pen.moveTo(at, top + 24);
    pen.lineTo(at + 16, top + 24);
    pen.stroke();
    pen.fillStyle = colors["ink-quiet"];
    const text = `${legend.textContent} ${figures[index].textContent}`;
    pen.fillText(text, at + 21, top + 28);
    at += 33 + pen.measureText(text).width;
  });
  pen.setLineDash([]);
}
