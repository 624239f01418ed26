/**
 * The page's state: one value, changed by actions alone.
 *
 * @template State, Action
 * @typedef {object} StoreOf
 * @property {() => State} getState
 * @property {(action: Action) => void} dispatch
 * @property {(listener: (state: State) => void) => void} subscribe for good
 */

/** @typedef {StoreOf<import("./state.js").State, import("./state.js").Action>} Store the page's */

/**
 * A store that holds `initial`. Listeners hear of the actions of one task together, after it, and only where the
 * state is another one.
 *
 * @template State, Action
 * @param {(state: State, action: Action) => State} reduce pure
 * @param {State} initial
 * @returns {StoreOf<State, Action>}
 */
export function createStore(reduce, initial) {
  /** @type {((state: State) => void)[]} */
  const listeners = [];
  let state = initial;
  let isAnnounced = true;

  function announce() {
    isAnnounced = true;
    for (const listener of listeners) tell(listener, state);
  }

  return {
    getState: () => state,
    dispatch(action) {
      const next = reduce(state, action);
      if (next === state) return;
      state = next;
      if (!isAnnounced) return;
      isAnnounced = false;
      queueMicrotask(announce);
    },
    subscribe(listener) {
      listeners.push(listener);
    },
  };
}

/**
 * One listener's failure is reported as any uncaught error is, and keeps nothing from the others.
 *
 * @template State
 * @param {(state: State) => void} listener
 * @param {State} state
 */
function tell(listener, state) {
  try {
    listener(state);
  } catch (error) {
    reportError(error);
  }
}
