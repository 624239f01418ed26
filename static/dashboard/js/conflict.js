/**
 * What others stored since the operator began, and the two ways to go on.
 *
 * @typedef {import("./state.js").State} State
 * @typedef {import("./versions.js").Account} Account
 */
import { create, find, setText, show } from "./dom.js";
import { createAccount } from "./versions.js";

const NUM_SHOWN = 3;
const READING_MS = 500;

/**
 * @param {HTMLElement} box
 * @param {{onApply: () => void, onDiscard: () => void}} actions
 */
export function createConflict(box, { onApply, onDiscard }) {
  const heading = find(box, "#conflict-heading");
  const list = find(box, "#conflict-accounts");
  const onTop = find(box, "#apply-on-top");
  /** @type {Account[]} */
  let accounts = [];
  let shownNumber = 0;
  let isRead = true;
  let isUsable = true;

  onTop.addEventListener("click", () => {
    if (onTop.ariaDisabled !== "true") onApply();
  });
  find(box, "#discard-mine").addEventListener("click", onDiscard);

  /** A click that was meant for what stood here before must not store anything. */
  function waitUntilRead() {
    isRead = false;
    setTimeout(() => {
      isRead = true;
      update();
    }, READING_MS);
  }

  function update() {
    onTop.ariaDisabled = String(!isRead || !isUsable);
  }

  return {
    focus: () => box.focus(),
    /** @param {State} state @param {{isUsable: boolean}} options */
    render({ proposal, hello, now }, options) {
      const newer = proposal.conflict?.newer ?? [];
      const newest = newer[0]?.number ?? 0;
      if (newest !== shownNumber && newest !== 0) {
        setText(
          heading,
          newer.length === 1
            ? `Version ${newest} changed this meanwhile`
            : `Changed ${newer.length} times meanwhile, last by version ${newest}`,
        );
        setText(onTop, `Apply on top of version ${newest}`);
        const shown = newer.slice(0, NUM_SHOWN);
        accounts = shown.map((version) => createAccount(version, hello?.tunables ?? []));
        const nodes = shown.map(({ number }, index) => [
          create("p", { text: `Version ${number}` }),
          ...accounts[index].nodes,
        ]);
        list.replaceChildren(...nodes.flat());
        waitUntilRead();
      }
      shownNumber = newest;
      for (const account of accounts) account.update(now);
      isUsable = options.isUsable;
      update();
      show(box, newest !== 0);
    },
  };
}
