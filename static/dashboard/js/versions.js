/**
 * The latest versions with their diffs, each with a button that rolls back to it.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./types.js").TunableSpec} TunableSpec
 * @typedef {import("./types.js").TunableValue} TunableValue
 * @typedef {import("./types.js").VersionInfo} VersionInfo
 * @typedef {import("./commands.js").Answer} Answer
 *
 * @typedef {object} Row
 * @property {HTMLElement} element
 * @property {HTMLElement} button
 * @property {(state: State) => void} update
 *
 * @typedef {object} Account of one version
 * @property {HTMLElement[]} nodes
 * @property {(now: number) => void} update its age; `now` in milliseconds
 */
import { create, setText, show } from "./dom.js";
import { focusFirst, isFocusLost } from "./focus.js";
import { age, moment, plain } from "./format.js";
import { confirmedValues, enginesApplied } from "./selectors.js";

const NUM_SHOWN = 8;

/**
 * @param {HTMLElement} list
 * @param {object} parts
 * @param {(version: number) => Promise<Answer>} parts.rollBack
 * @param {boolean} parts.maySteer
 * @param {HTMLElement} parts.problem where a refusal is shown
 * @returns {{render: (state: State) => void}}
 */
export function createVersions(list, { rollBack, maySteer, problem }) {
  /** @type {Map<number, Row>} */
  let rows = new Map();
  /** @type {TunableSpec[]} */
  let specs = [];
  /** @type {Account | null} */
  let cameFirst = null;
  list.tabIndex = -1;

  /** @param {number} number @param {HTMLButtonElement} button */
  async function goBack(number, button) {
    if (button.ariaBusy === "true" || button.ariaDisabled === "true") return;
    button.ariaBusy = "true";
    show(problem, false);
    const answer = await rollBack(number);
    button.ariaBusy = "false";
    const newest = answer.outcome === "refused" ? answer.newer[0] : undefined;
    cameFirst = newest ? createAccount(newest, specs) : null;
    cameFirst?.update(Date.now());
    const text = problemOf(answer);
    problem.replaceChildren(create("p", { text }), ...(cameFirst?.nodes ?? []));
    show(problem, text !== "");
  }

  return {
    render(state) {
      if (state.hello === null) return;
      specs = state.hello.tunables;
      const focused = [...rows.values()].findIndex(({ element }) => element.contains(document.activeElement));
      const shown = state.versions.slice(0, NUM_SHOWN);
      rows = new Map(
        shown.map((version) => [
          version.number,
          rows.get(version.number) ?? createRow(version, { specs, goBack: maySteer ? goBack : null }),
        ]),
      );
      place(
        list,
        [...rows.values()].map(({ element }) => element),
      );
      for (const row of rows.values()) row.update(state);
      cameFirst?.update(state.now);
      // A row leaves at the end when one comes at the beginning, and a button where its version is the newest again.
      if (focused >= 0 && isFocusLost())
        focusFirst([...nearestFirst([...rows.values()], focused).map(({ button }) => button), list]);
    },
  };
}

/**
 * What is in place already stays untouched, so that it keeps focus and hover.
 *
 * @param {HTMLElement} list
 * @param {HTMLElement[]} elements
 */
function place(list, elements) {
  let next = list.firstElementChild;
  for (const element of elements) {
    if (element === next) next = next.nextElementSibling;
    else list.insertBefore(element, next);
  }
  while (next) {
    const surplus = next;
    next = next.nextElementSibling;
    surplus.remove();
  }
}

/**
 * Those at `place` and below, then those above it.
 *
 * @param {Row[]} rows
 * @param {number} place
 */
function nearestFirst(rows, place) {
  return [...rows.slice(place), ...rows.slice(0, place).reverse()];
}

/**
 * @param {VersionInfo} version
 * @param {object} options
 * @param {TunableSpec[]} options.specs
 * @param {((number: number, button: HTMLButtonElement) => void) | null} options.goBack null where it is not allowed
 * @returns {Row}
 */
function createRow(version, { specs, goBack }) {
  const { number } = version;
  const account = createAccount(version, specs);
  const tag = create("span", { className: "tag", hidden: true });
  const button = create("button", {
    type: "button",
    className: "small",
    text: "Roll back",
    ariaLabel: `Roll back to version ${number}`,
  });
  button.addEventListener("click", () => goBack?.(number, button));
  const element = create("li", {}, [
    create("span", { className: "version num", text: `v${number}` }),
    create("div", {}, account.nodes),
    create("div", { className: "end" }, [tag, button]),
  ]);
  return {
    element,
    button,
    update(state) {
      const isNewest = state.versions[0]?.number === number;
      const inForce = confirmedValues(state);
      const isInForce = inForce !== null && inForce.confirmed && inForce.version === number;
      account.update(state.now);
      element.classList.toggle("is-current", isInForce);
      show(tag, isInForce || isNewest);
      setText(tag, isInForce ? "in force" : appliedWords(state, number));
      show(button, goBack !== null && !isNewest);
      // Not `disabled`, which would drop the focus.
      button.ariaDisabled = String(state.connection.state !== "live");
    },
  };
}

/**
 * Which version's values are shown and what the engines make of it: `version 14 in force`; empty before any is known.
 *
 * @param {State} state
 * @returns {string}
 */
export function standingOf(state) {
  const known = confirmedValues(state);
  if (known === null) return "";
  const { version, confirmed } = known;
  return confirmed ? `version ${version} in force` : `version ${version}, ${appliedWords(state, version)}`;
}

/** @param {State} state @param {number} number */
function appliedWords(state, number) {
  if (state.frame === null) return "stored";
  if (state.frame.trial?.version === number) return "tried on one engine";
  const { applied, total } = enginesApplied(state, number);
  return total === 0 ? "no engine runs" : `applied on ${applied} of ${total}`;
}

/** @param {Answer} answer */
function problemOf(answer) {
  if (answer.outcome === "not_sent") return "Not connected: nothing was rolled back.";
  if (answer.outcome === "unknown") return "No answer came: the list will show whether it was rolled back.";
  if (answer.outcome !== "refused") return "";
  const [newest] = answer.newer;
  return newest === undefined
    ? answer.message
    : `Version ${newest.number} came first. Roll back again if you still want to.`;
}

/**
 * What a version changed, when it was stored, by whom and why: the same wherever a version is told of.
 *
 * @param {VersionInfo} version
 * @param {TunableSpec[]} specs
 * @returns {Account}
 */
export function createAccount(version, specs) {
  const { author, reason, created_at } = version;
  const time = create("time", { dateTime: created_at });
  const facts = create("p", { className: "facts" }, [time, ` · ${author || "system"}`, reason ? ` · ${reason}` : ""]);
  return {
    nodes: [create("ul", { className: "diff" }, diffItems(version, specs)), facts],
    update(now) {
      setText(time, `${moment(created_at, now)}, ${age((now - Date.parse(created_at)) / 1000)}`);
    },
  };
}

/**
 * A version's diff, a line a tunable.
 *
 * @param {VersionInfo} version
 * @param {TunableSpec[]} specs
 * @returns {HTMLLIElement[]}
 */
function diffItems({ changes }, specs) {
  const lines = Object.entries(changes).map(([name, [from, to]]) => diffItem({ name, from, to }, specs));
  return lines.length > 0 ? lines : [create("li", { className: "quiet", text: "no change" })];
}

/**
 * @param {{name: string, from: TunableValue, to: TunableValue}} change
 * @param {TunableSpec[]} specs
 * @returns {HTMLLIElement}
 */
export function diffItem({ name, from, to }, specs) {
  const unit = specs.find((spec) => spec.name === name)?.unit ?? "";
  return create("li", {}, [
    create("code", { text: name }),
    " ",
    create("span", { className: "old", text: plain(from) }),
    create("span", { className: "arrow", text: " → " }),
    create("span", { className: "new", text: plain(to) }),
    create("span", { className: "unit", text: unit && unit !== "ratio" ? ` ${unit}` : "" }),
  ]);
}
