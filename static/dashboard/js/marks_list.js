/**
 * The marks of the stretch that is looked at, to be read one by one: for whoever does not see the charts' lines, or
 * cannot point at them. Each leads the crosshair to its moment.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./marks.js").Mark} Mark
 */
import { byId, create, setText, show } from "./dom.js";
import { clock, moment } from "./format.js";
import { linesOf, marksOf } from "./marks.js";
import { sourceOf } from "./source.js";

const MOST_SHOWN = 30;
const DAY_SECONDS = 86_400;
const LEAST_REST_MS = 1000;
const KINDS = { version: "change", event: "event", alert: "alert" };

/**
 * @param {HTMLElement} list
 * @param {{point: (unixSeconds: number | null) => void}} board
 * @returns {{render: (state: State) => void}}
 */
export function createMarksList(list, { point }) {
  const none = byId("marks-none");
  const more = byId("marks-more");
  let shownMarks = "";
  let renderedAt = -Infinity;
  return {
    render(state) {
      const now = performance.now();
      if (state.hello === null || now - renderedAt < LEAST_REST_MS) return;
      renderedAt = now;
      const marks = marksOf(sourceOf(state), state).reverse();
      const newest = marks.slice(0, MOST_SHOWN);
      const told = newest.map((mark) => ({ mark, lines: linesOf(mark) }));
      const shows = told.map(({ mark, lines }) => `${mark.at} ${lines.join("\n")}`).join("\n\n");
      show(none, marks.length === 0);
      show(more, marks.length > newest.length);
      setText(more, `and ${marks.length - newest.length} earlier`);
      // What is in place stays, so that it keeps the focus.
      if (shows === shownMarks) return;
      shownMarks = shows;
      const focused = [...list.children].findIndex((row) => row.contains(document.activeElement));
      list.replaceChildren(...told.map((each) => rowOf(each, point)));
      if (focused >= 0) list.children[Math.min(focused, list.children.length - 1)]?.querySelector("button")?.focus();
    },
  };
}

/** @param {{mark: Mark, lines: string[]}} told @param {(unixSeconds: number | null) => void} point */
function rowOf({ mark, lines: [first, ...rest] }, point) {
  const isOfToday = Date.now() / 1000 - mark.at < DAY_SECONDS;
  const time = isOfToday ? clock(mark.at) : moment(new Date(mark.at * 1000).toISOString());
  const button = create("button", { type: "button", className: "link num", text: time, ariaLabel: `Point at ${time}` });
  for (const name of ["focus", "pointerenter", "click"]) button.addEventListener(name, () => point(mark.at));
  for (const name of ["blur", "pointerleave"]) button.addEventListener(name, () => point(null));
  return create("li", { data: { kind: mark.kind } }, [
    button,
    create("span", { className: "mark-kind", text: KINDS[mark.kind] }),
    create("span", {}, [create("strong", { text: first }), rest.length > 0 ? ` ${rest.join(" · ")}` : ""]),
  ]);
}
