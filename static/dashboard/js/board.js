/**
 * All charts together: drawn from the ring at most once a change, with the latest figures in their heads, and one
 * crosshair through all of them.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./ring.js").Ring} Ring
 * @typedef {import("./types.js").TunableSpec} TunableSpec
 * @typedef {import("./types.js").VersionInfo} VersionInfo
 * @typedef {import("./charts.js").ChartView} ChartView
 * @typedef {import("./charts.js").Mark} Mark
 * @typedef {import("./mark_lines.js").Telling} Telling
 * @typedef {import("./charts.js").Series} Series
 * @typedef {import("./charts.js").Palette} Palette
 * @typedef {import("./chart_specs.js").ChartSpec} ChartSpec
 * @typedef {import("./chart_specs.js").SeriesSpec} SeriesSpec
 */
import { CHARTS, COLORS } from "./chart_specs.js";
import { createChart } from "./charts.js";
import { create, find, setText, show } from "./dom.js";
import { markersOf } from "./markers.js";
import { figure } from "./measures.js";
import { shown, totals } from "./selectors.js";
import { onThemeChange, readColors } from "./theme.js";
import { UTILISATION_TITLES } from "./tiles.js";
import { lineOf } from "./versions.js";

const FRAME_JITTER_MS = 150;
const SHORTEST_REST_MS = 1000;
const LONGEST_REST_MS = 2000;
const MOST_TOLD_VERSIONS = 20;
/** @type {Series} */
const NOTHING = { x: new Float64Array(0), y: new Float64Array(0) };

/**
 * @typedef {object} Panel one chart with its head
 * @property {ChartSpec} spec
 * @property {HTMLElement} element
 * @property {HTMLElement} crosshair
 * @property {HTMLElement} none what is said where there is nothing to draw
 * @property {HTMLElement[]} figures
 * @property {ChartView} view
 * @property {Series[]} series what is to be seen
 * @property {boolean} isVisible
 * @property {string} shows what the last drawing showed, but for its points
 * @property {number} revision that of the ring when it was drawn
 * @property {number} drawnAt milliseconds
 */

/**
 * @param {HTMLElement} root
 * @param {() => void} requestRender
 * @returns {{render: (state: State) => void}}
 */
export function createBoard(root, requestRender) {
  let palette = readPalette();
  let themeRevision = 0;
  /** @type {number | null} */
  let hovered = null;
  const panels = CHARTS.map((spec) => createPanel(root, spec, palette));

  const utilisationTitle = find(root, '[data-chart="utilisation"] h3');
  onThemeChange(() => {
    palette = readPalette();
    themeRevision += 1;
    for (const panel of panels) panel.view.paint(palette);
    requestRender();
  });
  watchVisibility(panels, requestRender);
  for (const panel of panels) {
    const canvas = find(panel.element, "canvas");
    canvas.addEventListener("pointermove", (event) => hover(panel.view.timeAt(event.offsetX)));
    canvas.addEventListener("pointerleave", () => hover(null));
  }

  /** @param {number | null} unixSeconds */
  function hover(unixSeconds) {
    hovered = unixSeconds === null ? null : Math.round(unixSeconds);
    requestRender();
  }

  return {
    render(state) {
      const { ring } = shown(state);
      setText(utilisationTitle, UTILISATION_TITLES[totals(state)?.utilisation.kind ?? "busy"]);
      const to = ring?.newestSeconds ?? state.now / 1000;
      const from = to - state.spanSeconds;
      const shows = [
        ring?.newestSeconds != null,
        state.hello !== null,
        state.paused !== null,
        state.window,
        state.spanSeconds,
        state.versions[0]?.number,
        themeRevision,
      ].join();
      const now = performance.now();
      /** @type {Mark[] | null} */
      let marks = null;
      for (const [index, panel] of panels.entries()) {
        if (!panel.isVisible) continue;
        panel.series = panel.spec.series.map((series) =>
          ring === null ? NOTHING : read(ring, series, { since: from, window: state.window }),
        );
        if (
          panel.shows !== shows ||
          isDue(panel, { revision: ring?.revision ?? 0, spanSeconds: state.spanSeconds, now })
        ) {
          marks ??= ring === null ? [] : marksOf(ring, from, state);
          const hasValues = panel.view.draw({ from, to, series: panel.series, marks });
          show(panel.none, !hasValues && state.hello !== null);
          // Every other chart half a second later, so that no frame has to draw them all.
          const lead = panel.shows !== shows && index % 2 === 1 ? SHORTEST_REST_MS / 2 : 0;
          Object.assign(panel, { shows, revision: ring?.revision ?? 0, drawnAt: now - lead });
        }
        renderFigures(panel, hovered);
        renderCrosshair(panel, hovered !== null && hovered >= from && hovered <= to ? hovered : null);
      }
    },
  };
}

/** @returns {Palette} */
function readPalette() {
  const colors = readColors(Object.values(COLORS));
  return /** @type {Palette} */ (
    Object.fromEntries(Object.entries(COLORS).map(([name, variable]) => [name, colors[variable]]))
  );
}

/**
 * @param {HTMLElement} root
 * @param {ChartSpec} spec
 * @param {Palette} palette
 * @returns {Panel}
 */
function createPanel(root, spec, palette) {
  const element = find(root, `[data-chart="${spec.id}"]`);
  const list = find(element, ".figures");
  const figures = spec.series.map((series) => {
    const element = create("dd", { text: "–" });
    list.append(
      create("div", {}, [
        create("dt", { text: series.label, data: { series: series.color, line: series.line } }),
        element,
      ]),
    );
    return element;
  });
  const view = createChart(/** @type {HTMLCanvasElement} */ (find(element, "canvas")), spec, palette);
  return {
    spec,
    element,
    crosshair: find(element, ".crosshair"),
    none: find(element, ".chart-none"),
    figures,
    view,
    series: [],
    isVisible: true,
    shows: "",
    revision: -1,
    drawnAt: 0,
  };
}

/**
 * A chart is drawn anew when its newest point has moved by about a pixel: not more than once a second, as there is a
 * point a second, and at least every two. The figures over it are of every frame.
 *
 * @param {Panel} panel
 * @param {{revision: number, spanSeconds: number, now: number}} present
 */
function isDue({ view, revision, drawnAt }, present) {
  if (revision === present.revision) return false;
  const pixelMs = (1000 * present.spanSeconds) / view.width();
  // Frames do not come to the millisecond.
  return present.now - drawnAt > Math.min(LONGEST_REST_MS, Math.max(SHORTEST_REST_MS, pixelMs)) - FRAME_JITTER_MS;
}

/** What is out of sight is not drawn until it comes back. @param {Panel[]} panels @param {() => void} requestRender */
function watchVisibility(panels, requestRender) {
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const panel = panels.find(({ element }) => element === entry.target);
      if (panel) panel.isVisible = entry.isIntersecting;
    }
    requestRender();
  });
  for (const panel of panels) observer.observe(panel.element);
}

/** @param {Ring} ring @param {SeriesSpec} spec @param {{since: number, window: number}} range @returns {Series} */
function read(ring, { field, measured }, { since, window }) {
  // One place more than is seen, so that the line begins at the edge.
  if (measured) return ring.percentiles({ window, ...measured }, { since: since - 1 });
  return ring.series(/** @type {string} */ (field), { since: since - 1 });
}

/** @param {Ring} ring @param {number} since @param {State} state @returns {Mark[]} */
function marksOf(ring, since, { versions, hello }) {
  const specs = hello?.tunables ?? [];
  return markersOf(ring, { since }).map((marker) => {
    const first = Math.max(marker.first, marker.version - MOST_TOLD_VERSIONS + 1);
    const numbers = Array.from({ length: marker.version - first + 1 }, (_, index) => first + index);
    return { ...marker, tellings: numbers.map((number) => tellingOf(number, { versions, specs })) };
  });
}

/** @param {number} number @param {{versions: VersionInfo[], specs: TunableSpec[]}} known @returns {Telling} */
function tellingOf(number, { versions, specs }) {
  const info = versions.find((version) => version.number === number);
  const changes = Object.entries(info?.changes ?? {}).map(([name, [from, to]]) => lineOf({ name, from, to }, specs));
  return { number, author: info?.author ?? "", changes };
}

/** @param {Panel} panel @param {number | null} second the latest where null */
function renderFigures({ spec, series, figures }, second) {
  figures.forEach((element, index) => {
    const { x, y } = series[index] ?? NOTHING;
    const place = second === null ? y.length - 1 : second - x[0];
    setText(element, figure(y[place], spec.measure));
  });
}

/** @param {Panel} panel @param {number | null} second */
function renderCrosshair({ crosshair, view }, second) {
  show(crosshair, second !== null);
  if (second !== null) crosshair.style.transform = `translateX(${Math.round(view.pixelAt(second))}px)`;
}
