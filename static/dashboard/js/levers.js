/**
 * The levers: each shows what the engines confirmed, or what is proposed for it, marked as such.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./state.js").Action} Action
 * @typedef {import("./types.js").TunableValue} TunableValue
 * @typedef {{from: TunableValue, to: TunableValue}} Move
 *
 * @typedef {object} Look what one lever shows
 * @property {string} text
 * @property {"confirmed" | "proposed" | "pending" | "wrong"} state
 * @property {Move | null} move
 * @property {string} error
 */
import { find, setData, setText, show } from "./dom.js";
import { plain } from "./format.js";
import { confirmedValues } from "./selectors.js";
import { standingOf } from "./versions.js";

/**
 * @param {HTMLElement} root
 * @param {(action: Action) => void} dispatch
 * @returns {{render: (state: State) => void}}
 */
export function createLevers(root, dispatch) {
  const levers = [...root.querySelectorAll(".lever")].map((element) =>
    createLever(/** @type {HTMLElement} */ (element), dispatch),
  );
  const version = find(root, "#levers-version");
  return {
    render(state) {
      const confirmed = confirmedValues(state);
      if (confirmed === null) return;
      const isCurrent = state.connection.state === "live" && !state.isStale;
      setText(version, isCurrent ? standingOf(state) : `version ${confirmed.version}, last known`);
      // Before the server's hello nothing could be made of an edit.
      const isLocked = !state.hello?.may_steer;
      for (const lever of levers) lever.render(lookOf(lever.name, state, confirmed.values), isLocked);
    },
  };
}

/**
 * @param {string} name
 * @param {State} state
 * @param {Record<string, TunableValue>} confirmed
 * @returns {Look}
 */
function lookOf(name, { proposal }, confirmed) {
  const value = confirmed[name];
  const typed = proposal.texts[name];
  const text = typed ?? String(value ?? "");
  if (name in proposal.errors) return { text, state: "wrong", move: null, error: proposal.errors[name] };
  if (name in proposal.changes) {
    const move = { from: proposal.base?.values[name] ?? value, to: proposal.changes[name] };
    const isRefused = proposal.refusal?.param === name;
    return {
      text,
      state: isRefused ? "wrong" : "proposed",
      move,
      error: isRefused ? (proposal.refusal?.message ?? "") : "",
    };
  }
  const stored = proposal.phase === "stored" ? proposal.stored?.changes[name] : undefined;
  if (stored) return { text, state: "pending", move: { from: value, to: stored[1] }, error: "" };
  return { text, state: "confirmed", move: null, error: "" };
}

/** @param {HTMLElement} element @param {(action: Action) => void} dispatch */
function createLever(element, dispatch) {
  const name = element.dataset.lever ?? "";
  const change = find(element, ".lever-change");
  const [from, to, undo] = [".old", ".new", "button"].map((selector) => find(change, selector));
  const problem = find(element, ".problem");
  const control = element.dataset.kind === "choice" ? createChoice(element) : createField(element);
  const edit = (/** @type {string} */ text) => dispatch({ type: "edit", name, text });

  element.addEventListener("input", (event) => edit(/** @type {HTMLInputElement} */ (event.target).value));
  element.addEventListener("keydown", (event) => {
    if (event.key === "Escape") takeBack();
  });
  undo.addEventListener("click", () => {
    takeBack();
    control.focus();
  });

  function takeBack() {
    dispatch({ type: "withdraw", name });
  }

  return {
    name,
    /** @param {Look} look @param {boolean} isLocked */
    render({ text, state, move, error }, isLocked) {
      setData(element, "state", state);
      control.render(text, { isWrong: error !== "", isLocked });
      show(change, move !== null);
      if (move !== null) {
        setText(from, plain(move.from));
        setText(to, plain(move.to));
        show(undo, state !== "pending");
      }
      show(problem, error !== "");
      setText(problem, error);
    },
  };
}

/** @typedef {{isWrong: boolean, isLocked: boolean}} Standing of what a control shows */

/** A number or a name, and for shares a slider beside it. @param {HTMLElement} element */
function createField(element) {
  const input = /** @type {HTMLInputElement} */ (find(element, ".lever-input input"));
  const slider = /** @type {HTMLInputElement | null} */ (element.querySelector('input[type="range"]'));
  return {
    focus: () => input.focus(),
    /** @param {string} text what is typed, as it is typed @param {Standing} standing */
    render(text, { isWrong, isLocked }) {
      if (input.value !== text) input.value = text;
      input.setAttribute("aria-invalid", String(isWrong));
      input.readOnly = isLocked;
      if (slider === null) return;
      slider.disabled = isLocked;
      // A slider has a place for every value, and none for what is no value.
      if (isWrong || Number(slider.value) === Number(text)) return;
      slider.value = String(Number(text));
    },
  };
}

/** @param {HTMLElement} element */
function createChoice(element) {
  const inputs = /** @type {HTMLInputElement[]} */ ([...element.querySelectorAll('input[type="radio"]')]);
  return {
    focus: () => (inputs.find((input) => input.checked) ?? inputs[0]).focus(),
    /** @param {string} text @param {Standing} standing */
    render(text, { isLocked }) {
      for (const input of inputs) {
        input.disabled = isLocked;
        if (input.checked !== (input.value === text)) input.checked = input.value === text;
      }
    },
  };
}
