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
      setText(version, `version ${confirmed.version}${confirmed.confirmed ? " in force" : ", on no engine yet"}`);
      for (const lever of levers) lever.render(lookOf(lever.name, state, confirmed.values));
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
  const control = element.dataset.kind === "choice" ? createChoice(element) : createNumber(element);
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
    control.release();
    dispatch({ type: "withdraw", name });
  }

  return {
    name,
    /** @param {Look} look */
    render({ text, state, move, error }) {
      setData(element, "state", state);
      control.render(text, error !== "");
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

/** A number, and for shares a slider beside it. @param {HTMLElement} element */
function createNumber(element) {
  const input = /** @type {HTMLInputElement} */ (find(element, ".lever-input input"));
  const slider = /** @type {HTMLInputElement | null} */ (element.querySelector('input[type="range"]'));
  // What is being typed stays as it is typed, even where another text means the same.
  let isTyping = false;
  input.addEventListener("input", () => (isTyping = true));
  input.addEventListener("blur", () => (isTyping = false));
  return {
    focus: () => input.focus(),
    release: () => (isTyping = false),
    /** @param {string} text @param {boolean} isWrong */
    render(text, isWrong) {
      if (!isTyping && input.value !== text) input.value = text;
      if (slider && slider.value !== text && document.activeElement !== slider) slider.value = text;
      input.setAttribute("aria-invalid", String(isWrong));
    },
  };
}

/** @param {HTMLElement} element */
function createChoice(element) {
  const inputs = /** @type {HTMLInputElement[]} */ ([...element.querySelectorAll('input[type="radio"]')]);
  return {
    focus: () => (inputs.find((input) => input.checked) ?? inputs[0]).focus(),
    release: () => {},
    /** @param {string} text */
    render(text) {
      for (const input of inputs) if (input.checked !== (input.value === text)) input.checked = input.value === text;
    },
  };
}
