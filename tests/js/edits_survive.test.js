/** Whatever comes in, in whatever order: nothing typed is lost, and nothing is sent that its operator did not see. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { canSend } from "../../static/dashboard/js/proposal.js";
import { reduce } from "../../static/dashboard/js/reducers.js";
import { initialState } from "../../static/dashboard/js/state.js";
import { pick, seededRandom, under } from "./support/fakes.js";
import { DEFAULTS, engine, frame, hello, refused, SPECS, stored, version } from "./support/messages.js";

const TEXTS = {
  mode: ["continuous", "static"],
  batch_window_ms: ["0", "5", "5.", "99999", "", "x"],
  max_running: ["32", "8", "16", "2000", "8.5", ""],
  prefill_share: ["0.5", "0.9", ".9", "7"],
};

/** A server, an operator who steers through it, another operator, and a line that breaks. */
function createWorld(random) {
  const world = {
    versions: [version(1)],
    state: initialState({ now: 0 }),
    typed: new Map(),
    sent: null,
    lastId: 0,
    sequence: 0,
    at: 0,
  };
  const dispatch = (action) => {
    world.state = reduce(world.state, action);
  };
  const receive = (message) => dispatch({ type: "received", message, at: (world.at += 10) });
  const sayHello = () => receive(hello({ versions: world.versions.slice(0, 20) }));

  function store(changes, author) {
    const { number, values } = world.versions[0];
    const diff = Object.fromEntries(Object.entries(changes).map(([name, value]) => [name, [values[name], value]]));
    const next = { ...version(number + 1, { changes: diff, author }), values: { ...values, ...changes } };
    world.versions = [next, ...world.versions];
    return next;
  }

  /** What was sent and stored is no edit any more, unless it was typed anew. */
  function settleTyped(sent) {
    for (const [name, text] of Object.entries(sent.texts)) if (world.typed.get(name) === text) world.typed.delete(name);
  }

  function answer({ isHeard }) {
    const { sent } = world;
    world.sent = null;
    const isStale = sent.basedOn !== world.versions[0].number;
    const info = isStale ? null : store(sent.changes, "ann");
    if (info !== null) settleTyped(sent);
    if (isHeard) {
      const newer = world.versions.filter(({ number }) => number > sent.basedOn);
      receive(info === null ? refused(sent.id, { code: "stale_version", newer }) : stored(sent.id, info));
    } else {
      dispatch({ type: "answer_lost", id: sent.id, wasSent: true });
      sayHello();
    }
  }

  const moves = {
    edit() {
      const name = pick(random, Object.keys(TEXTS));
      const text = pick(random, TEXTS[name]);
      world.typed.set(name, text);
      dispatch({ type: "edit", name, text });
    },
    withdraw() {
      const name = pick(random, Object.keys(TEXTS));
      world.typed.delete(name);
      dispatch({ type: "withdraw", name });
    },
    rebase: () => dispatch({ type: "rebase" }),
    frame() {
      const { number } = pick(random, world.versions.slice(0, 2));
      receive(
        frame((world.sequence += 1), 1000 + world.sequence, {
          announced_version: world.versions[0].number,
          engines: [engine({ tunables_version: number })],
        }),
      );
    },
    other() {
      const value = 1 + under(random, 60);
      if (value !== world.versions[0].values.max_running) store({ max_running: value }, "bob");
    },
    listVersions: () => receive({ type: "versions", id: (world.lastId += 1), versions: world.versions.slice(0, 20) }),
    send() {
      const { proposal } = world.state;
      if (world.sent !== null || !canSend(proposal)) return;
      const id = (world.lastId += 1);
      world.sent = { id, changes: proposal.changes, texts: proposal.texts, basedOn: proposal.base.number };
      dispatch({ type: "sent", id });
    },
    answer() {
      if (world.sent !== null) answer({ isHeard: random() < 0.6 });
    },
    notSent() {
      if (world.sent === null) return;
      dispatch({ type: "answer_lost", id: world.sent.id, wasSent: false });
      world.sent = null;
    },
    lostOnTheWay() {
      if (world.sent === null) return;
      dispatch({ type: "answer_lost", id: world.sent.id, wasSent: true });
      world.sent = null;
      sayHello();
    },
    reconnect() {
      if (world.sent === null) sayHello();
    },
  };
  sayHello();
  return { world, move: () => moves[pick(random, Object.keys(moves))]() };
}

function check({ state, typed, versions }, note) {
  const { proposal } = state;
  for (const [name, text] of typed) {
    const isKept = proposal.texts[name] === text;
    // Only what equals a stored value may drop out: there is nothing left to change.
    const isStored = versions.some(({ values }) => Number(text) === values[name] || text === values[name]);
    assert.ok(isKept || isStored, `${note}: ${name} "${text}" is lost`);
  }
  for (const name of Object.keys(proposal.changes)) {
    assert.ok(name in proposal.texts, `${note}: ${name} would change, and nobody typed it`);
    assert.notEqual(proposal.changes[name], proposal.base.values[name], `${note}: ${name} changes nothing`);
    assert.ok(!(name in proposal.errors), `${note}: ${name} is both valid and not`);
  }
  const known = versions.find(({ number }) => number === proposal.base?.number);
  if (proposal.base !== null) assert.deepEqual(proposal.base.values, known.values, note);
  if (canSend(proposal))
    assert.ok(state.versions[0].number <= proposal.base.number, `${note}: others' changes were not shown`);
  if (proposal.phase === "stored" || proposal.phase === "applied") assert.ok(proposal.stored.number > 1, note);
}

test("no sequence of frames, reconnects, refusals and others' changes loses an edit", () => {
  for (let seed = 1; seed <= 200; seed += 1) {
    const { world, move } = createWorld(seededRandom(seed));
    for (let turn = 0; turn < 120; turn += 1) {
      move();
      check(world, `seed ${seed}, turn ${turn}`);
    }
  }
});

test("the words typed above are told apart from the defaults", () => {
  for (const { name } of SPECS)
    assert.ok(
      TEXTS[name].some((text) => text !== String(DEFAULTS[name])),
      name,
    );
});
