/**
 * The groups of charts, which fold, and the list in which charts are hidden.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./state.js").Action} Action
 */
import { create, find, show } from "./dom.js";

/**
 * @param {HTMLElement} root holds the groups
 * @param {HTMLElement} menu where every chart gets a box to tick
 * @param {(action: Action) => void} dispatch
 * @returns {{render: (state: State) => void}}
 */
export function createGroups(root, menu, dispatch) {
  const groups = /** @type {HTMLDetailsElement[]} */ ([...root.querySelectorAll("details.group")]);
  const charts = groups.flatMap((group) => {
    const figures = /** @type {HTMLElement[]} */ ([...group.querySelectorAll("[data-chart]")]);
    const rows = figures.map((figure) => createBox(figure, dispatch));
    const title = create("legend", { text: find(group, "h2").textContent ?? "" });
    menu.append(create("fieldset", {}, [title, ...rows.map(({ label }) => label)]));
    return rows;
  });
  for (const group of groups) {
    const name = group.dataset.group ?? "";
    // Keys click too. The browser folds it after this.
    find(group, "summary").addEventListener("click", () => {
      dispatch({ type: "fold", group: name, isFolded: group.open });
    });
  }
  /** @type {unknown} */
  let seen = null;
  menu.addEventListener("beforetoggle", () => {
    for (const { figure, label } of charts) show(label, figure.dataset.absent !== "true");
  });
  return {
    render({ folded, hidden }) {
      const shows = `${folded} ${hidden}`;
      if (seen === shows) return;
      seen = shows;
      for (const group of groups) group.open = !folded.includes(group.dataset.group ?? "");
      for (const { figure, box } of charts) {
        const isHidden = hidden.includes(figure.dataset.chart ?? "");
        show(figure, !isHidden);
        box.checked = !isHidden;
      }
    },
  };
}

/** @param {HTMLElement} figure @param {(action: Action) => void} dispatch */
function createBox(figure, dispatch) {
  const chart = figure.dataset.chart ?? "";
  const box = create("input", { type: "checkbox", checked: true });
  box.addEventListener("change", () => dispatch({ type: "hide", chart, isHidden: !box.checked }));
  return { figure, box, label: create("label", {}, [box, find(figure, "h3").textContent ?? ""]) };
}
