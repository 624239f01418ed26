/**
 * The selected step as a table: for those who do not see the picture, and with a way to each request.
 *
 * @typedef {import("./steps_layout.js").Column} Column
 * @typedef {import("./steps_rows.js").Row} Row
 * @typedef {import("./steps_rows.js").Sequence} Sequence
 */
import { byId, create, setText, show } from "./dom.js";
import { clock, count } from "./format.js";
import { shortName } from "./steps_rows.js";
import { membersOf, timeOf, titleOf, workOf } from "./steps_words.js";

/**
 * Where a request's page is; empty for whoever may not see requests. Of several prompts in one call, each has its own.
 *
 * @param {string} requestsUrl
 * @param {Sequence} sequence
 */
export function addressOf(requestsUrl, sequence) {
  return requestsUrl === "" ? "" : `${requestsUrl}${encodeURIComponent(sequence.requestId)}/`;
}

/** @param {{requestsUrl: string}} parts */
export function createDetail({ requestsUrl }) {
  const heading = byId("step-heading");
  const none = byId("step-none");
  const facts = byId("step-facts");
  const table = byId("step-table");
  const body = byId("step-members");
  /** @type {Column | null} */
  let shown = null;

  /** @param {Sequence} sequence */
  function nameOf(sequence) {
    const url = addressOf(requestsUrl, sequence);
    const name = shortName(sequence);
    const title = `${sequence.requestId}, choice ${sequence.choice}`;
    return url === "" ? create("code", { text: name, title }) : create("a", { href: url, text: name, title });
  }

  /** @param {Row} row */
  function fill(row) {
    facts.replaceChildren(
      ...factsOf(row).map(([name, value]) =>
        create("div", {}, [create("dt", { text: name }), create("dd", { text: value })]),
      ),
    );
    body.replaceChildren(
      ...membersOf(row).map(({ sequence, kind, words, tokens }) =>
        create("tr", {}, [
          create("th", { scope: "row" }, [nameOf(sequence)]),
          create("td", {}, [create("i", { className: "sign", data: { kind } }), ` ${words}`]),
          create("td", { className: "end num", text: tokens === null ? "–" : count(tokens) }),
        ]),
      ),
    );
  }

  return {
    /** @param {Column | null} column null where none is selected */
    render(column) {
      if (column === shown) return;
      shown = column;
      const row = column?.row ?? null;
      setText(heading, column === null ? "Step" : titleOf(column));
      show(none, row === null);
      setText(none, column === null ? none.dataset.hint ?? "" : "What these steps did was lost on its way here.");
      show(facts, row !== null);
      show(table, row !== null);
      if (row !== null) fill(row);
    },
  };
}

/** @param {Row} row @returns {[string, string][]} */
function factsOf(row) {
  return [
    ["Began", clock(row.at)],
    ["Took", timeOf(row)],
    ["Computed", workOf(row)],
    ["Tokens", `${count(row.prefillTokens + row.decodeTokens)} of a budget of ${count(row.budget)}`],
    ["Tunables", `version ${count(row.version)}${row.isStatic ? ", static" : ""}`],
  ];
}
