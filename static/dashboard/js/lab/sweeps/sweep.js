/** A sweep's page: it is read again while the sweep runs, and its points are drawn as they come. */
import { byId, create, find } from "../../dom.js";
import { morph } from "../../morph.js";
import { readOften, readPart } from "../../parts.js";
import { onThemeChange, readColors } from "../../theme.js";
import { Chart } from "../../vendor.js";
import { chartOf, COLORS, spoken } from "./drawing.js";

const region = byId("refreshed");
const place = byId("sweep-charts");
/** @type {{destroy: () => void}[]} */
let charts = [];
let drawn = "";

/** Draws what the page tells, where that is not what is drawn. */
function draw() {
  const told = byId("sweep-chart").textContent ?? "[]";
  if (told === drawn) return;
  drawn = told;
  for (const chart of charts) chart.destroy();
  /** @type {import("./drawing.js").SweptLeg[]} */
  const legs = JSON.parse(told).filter((/** @type {import("./drawing.js").SweptLeg} */ leg) => leg.points.length > 0);
  const palette = readColors(COLORS);
  place.replaceChildren();
  charts = legs.map((leg) => {
    const canvas = /** @type {HTMLCanvasElement} */ (create("canvas"));
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", spoken(leg));
    const box = create("div", { className: "plot-area" }, [canvas]);
    place.append(create("figure", { className: "plot" }, [create("figcaption", { text: leg.title }), box]));
    return new Chart(canvas, /** @type {any} */ (chartOf(leg, palette)));
  });
}

function isOver() {
  return byId("sweep").dataset.over === "true";
}

async function refresh() {
  if (isOver()) return;
  const fresh = await readPart(/** @type {string} */ (region.dataset.url));
  morph(byId("sweep"), find(fresh, "#sweep"));
  draw();
}

draw();
onThemeChange(() => {
  drawn = "";
  draw();
});
readOften(refresh, { say: (text) => (byId("refresh-status").textContent = text) });
