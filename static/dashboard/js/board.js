/**
 * All charts together: drawn at most once a change, with the latest figures in their heads, one crosshair through all
 * of them, and one stretch of time that all show.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./state.js").Action} Action
 * @typedef {import("./marks.js").Mark} Mark
 * @typedef {import("./panel.js").Panel} Panel
 * @typedef {import("./source.js").Source} Source
 * @typedef {import("./chart_options.js").Palette} Palette
 * @typedef {import("./figures.js").Figures} Figures
 *
 * @typedef {object} Snapshot
 * @property {Source} source
 * @property {Panel[]} open those that are neither hidden nor folded away, drawn as of now
 * @property {Table[]} tables all that there are, with all their names
 * @typedef {{place: "folded" | "hidden" | "open", group: string} & Pick<Panel, "spec" | "title"> & Figures} Table
 */
import { CHARTS, COLORS } from "./chart_specs.js";
import { deedOf } from "./crosshair.js";
import { byId, find, setData, setText } from "./dom.js";
import { figuresOf } from "./figures.js";
import { clock } from "./format.js";
import { watchGestures } from "./gestures.js";
import { knownVersions, linesNear, marksOf } from "./marks.js";
import { objectivesOf } from "./objectives.js";
import { createPanel, drawPanel, renderCrosshair, renderFigures, spoken } from "./panel.js";
import { shown, totals } from "./selectors.js";
import { sourceOf } from "./source.js";
import { onThemeChange, readColors } from "./theme.js";
import { MEMORY_TITLES, UTILISATION_TITLES } from "./tiles.js";
import { stretchOf } from "./view.js";

const FRAME_JITTER_MS = 150;
const SHORTEST_REST_MS = 1000;
const LONGEST_REST_MS = 2000;
const LONGEST_REST_OF_PAST_MS = 10_000;
const NUM_TURNS = 4;
const MOVED_PIXELS = 3;

/**
 * @param {HTMLElement} root
 * @param {{requestRender: () => void, dispatch: (action: Action) => void, getState: () => State}} actions
 */
export function createBoard(root, { requestRender, dispatch, getState }) {
  let palette = readPalette();
  let themeRevision = 0;
  /** @type {number | null} */
  let hovered = null;
  const panels = CHARTS.map((spec) => createPanel(root, spec, palette));
  const titles = [
    { element: find(root, '[data-chart="utilisation"] h3'), of: utilisationTitle },
    { element: find(root, '[data-chart="memory"] h3'), of: memoryTitle },
  ];
  const said = byId("chart-said");

  onThemeChange(() => {
    palette = readPalette();
    themeRevision += 1;
    for (const panel of panels) panel.view.paint(palette);
    requestRender();
  });
  watchVisibility(panels, requestRender);
  for (const panel of panels)
    watchGestures(panel, {
      point: (_, second) => point(second),
      select: (from, to) => dispatch({ type: "look_at", stretch: stretchOf(from, to) }),
      back: () => dispatch({ type: "look_at", stretch: null }),
      press,
    });

  /** @param {number | null} second */
  function point(second) {
    if (second === hovered) return;
    hovered = second;
    requestRender();
  }

  /** @param {Panel} panel @param {string} key @param {boolean} hasShift */
  function press(panel, key, hasShift) {
    const state = getState();
    const source = sourceOf(state);
    const newest = shown(state).ring?.newestSeconds ?? state.now / 1000;
    const deed = deedOf(key, { hasShift, second: hovered, stretch: source.stretch, step: source.step, newest });
    if (deed === null) return false;
    if (deed.kind === "look_at") {
      const { from, to } = deed.stretch;
      dispatch({ type: "look_at", stretch: deed.stretch });
      setText(said, `${clock(from)} to ${clock(to)}`);
      // It stays in sight.
      if (hovered !== null) point(Math.min(to, Math.max(from, hovered)));
    } else if (deed.kind === "leave") {
      if (hovered === null) dispatch({ type: "look_at", stretch: null });
      point(null);
    } else {
      point(deed.second);
      const reach = source.step + (source.stretch.to - source.stretch.from) / 100;
      const near = linesNear(marksOf(source, state), { second: deed.second, reach });
      setText(said, [spoken(panel, { second: deed.second, step: source.step }), ...near].join("; "));
    }
    return true;
  }

  /** @param {Source} source @param {State} state */
  function read(source, state) {
    const known = knownVersions(state);
    const inForce = source.versions();
    return (/** @type {Panel} */ { spec }) => ({
      ...figuresOf(spec, source),
      objectives:
        spec.objective === undefined
          ? []
          : objectivesOf(inForce, { name: spec.objective, step: source.step, known }),
    });
  }

  return {
    point,
    /** @param {State} state */
    render(state) {
      const source = sourceOf(state);
      for (const { element, of } of titles) setText(element, of(state));
      const readPanel = read(source, state);
      const shows = showsOf(state, source, themeRevision);
      const now = performance.now();
      /** @type {Mark[] | null} */
      let marks = null;
      const { from, to } = source.stretch;
      const second = hovered !== null && hovered >= from && hovered <= to ? hovered : null;
      for (const [index, panel] of panels.entries()) {
        const isOptional = panel.spec.named?.leastNames !== undefined;
        // What is not there is in nobody's sight either, until there is a use for it.
        if (!panel.isVisible && !isOptional) continue;
        Object.assign(panel, readPanel(panel));
        if (isOptional) setData(panel.element, "absent", String(panel.isAbsent));
        if (!panel.isVisible) continue;
        if (panel.shows !== shows || isDue(panel, { source, now })) {
          marks ??= marksOf(source, state);
          drawPanel(panel, { source, marks, isKnown: isKnown(state, source) });
          // At first each at another moment, so that no frame has to draw them all.
          const lead = panel.shows !== shows ? ((index % NUM_TURNS) * SHORTEST_REST_MS) / 2 : 0;
          Object.assign(panel, { shows, revision: source.revision, drawnAt: now - lead });
        }
        renderFigures(panel, { second, step: source.step });
        renderCrosshair(panel, second);
      }
    },
    /** @returns {Snapshot} */
    snapshot() {
      const state = getState();
      const source = sourceOf(state);
      const readPanel = read(source, state);
      const marks = marksOf(source, state);
      for (const panel of panels) Object.assign(panel, readPanel(panel));
      const open = panels.filter((panel) => placeOf(panel).place === "open" && !panel.isAbsent);
      for (const panel of open) {
        drawPanel(panel, { source, marks, isKnown: isKnown(state, source) });
        renderFigures(panel, { second: hovered, step: source.step });
      }
      const tables = panels
        .map((panel) => ({ ...placeOf(panel), ...figuresOf(panel.spec, source, { mostNames: Infinity }) }))
        .filter(({ isAbsent }) => !isAbsent);
      return { open, tables, source };
    },
  };
}

/** @param {Panel} panel @returns {Omit<Table, keyof Figures>} */
function placeOf({ spec, title, element }) {
  const group = /** @type {HTMLDetailsElement} */ (element.closest("details.group"));
  // A folded chart has its size all the same.
  const place = !group.open ? "folded" : element.hidden ? "hidden" : "open";
  return { spec, title, place, group: find(group, "h2").textContent ?? "" };
}

/** @param {State} state @param {Source} source */
function isKnown({ hello, past }, { isOfPast }) {
  return hello !== null && (!isOfPast || past !== null);
}

/** @param {State} state @param {Source} source @param {number} themeRevision */
function showsOf(state, source, themeRevision) {
  const { ring } = shown(state);
  return [
    ring?.newestSeconds != null,
    state.hello !== null,
    state.paused !== null,
    state.window,
    state.spanSeconds,
    state.stretch?.from,
    state.stretch?.to,
    source.isOfPast && state.past?.readAt,
    state.versions[0]?.number,
    state.events[0]?.event_id,
    themeRevision,
  ].join();
}

/** @param {State} state */
function utilisationTitle(state) {
  return UTILISATION_TITLES[totals(state)?.utilisation.kind ?? "busy"];
}

/** @param {State} state */
function memoryTitle(state) {
  return MEMORY_TITLES[totals(state)?.memory.kind ?? "rss"];
}

/** @returns {Palette} */
function readPalette() {
  const colors = readColors(Object.values(COLORS));
  return /** @type {Palette} */ (
    Object.fromEntries(Object.entries(COLORS).map(([name, variable]) => [name, colors[variable]]))
  );
}

/**
 * A chart is drawn anew when its newest point has moved by a few pixels: not more than once a second, as there is a
 * point a second, and at least every two (of a longer past: ten). Small ones are never drawn more often than that. The
 * figures over them are of every frame.
 *
 * @param {Panel} panel
 * @param {{source: Source, now: number}} present
 */
function isDue({ view, isMain, revision, drawnAt }, { source, now }) {
  if (revision === source.revision) return false;
  const shortest = isMain ? SHORTEST_REST_MS : LONGEST_REST_MS;
  const movedMs = (MOVED_PIXELS * 1000 * (source.stretch.to - source.stretch.from)) / view.width();
  const longest = source.isOfPast ? LONGEST_REST_OF_PAST_MS : LONGEST_REST_MS;
  // Frames do not come to the millisecond.
  return now - drawnAt > Math.min(longest, Math.max(shortest, movedMs)) - FRAME_JITTER_MS;
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
