/** What keeps a form from being sent, and the token that it bears when it is. */
import assert from "node:assert/strict";
import test from "node:test";

import { currentToken } from "../../static/dashboard/js/csrf.js";
import { hindranceTo } from "../../static/dashboard/js/sending.js";

/** What a page of `user` is told where the server answers so. */
const hindrance = (user, response) =>
  hindranceTo({ url: "/console/session.json", user, fetch: async () => response() });

const session = (user, mayWatch = true) => () => new Response(JSON.stringify({ user, may_watch: mayWatch }));

test("nothing hinders a form of whoever is signed in", async () => {
  assert.equal(await hindrance("ann", session("ann")), null);
});

test("where nobody is signed in yet, the form to sign in goes, also when somebody did so in another window", async () => {
  assert.equal(await hindrance("", session(null, false)), null);
  assert.equal(await hindrance("", session("ann")), null);
});

test("a session that ended is said, with the way back", async () => {
  const told = await hindrance("ann", session(null, false));
  assert.equal(told.isSignedOut, true);
  assert.match(told.text, /^Nothing was sent: you are signed out/);
});

test("nobody acts in another's name", async () => {
  assert.match((await hindrance("ann", session("ben"))).text, /ben has signed in in another window/);
});

test("a server that is away or fails gets nothing, and keeps nothing typed", async () => {
  const away = () => {
    throw new TypeError("network error");
  };
  assert.match((await hindrance("ann", away)).text, /does not answer\. What you typed is still here/);
  const failing = () => new Response("", { status: 503 });
  assert.match((await hindrance("ann", failing)).text, /answers with status 503\. What you typed is still here/);
  const nothing = () => new Response("<html>", { status: 200 });
  assert.match((await hindrance("ann", nothing)).text, /does not answer/);
});

test("whoever may no longer use the console is told so", async () => {
  assert.match((await hindrance("ann", session("ann", false))).text, /may not use the console/);
});

test("whoever may not use the console can still sign out of it", async () => {
  const signingOut = { url: "/console/session.json", user: "ann", isForAll: true };
  assert.equal(await hindranceTo({ ...signingOut, fetch: async () => session("ann", false)() }), null);
  const other = await hindranceTo({ ...signingOut, fetch: async () => session("ben", false)() });
  assert.match(other.text, /ben has signed in in another window/);
});

test("whoever has to choose a password first is told so, and can", async () => {
  const fetch = async () => new Response(JSON.stringify({ user: "ann", may_watch: true, must_change_password: true }));
  const form = { url: "/console/session.json", user: "ann", fetch };
  assert.match((await hindranceTo(form)).text, /choose a password of your own first.*still here/);
  assert.equal(await hindranceTo({ ...form, isForAll: true }), null);
});

test("the newest token is the cookie's, and without one the page's own", () => {
  assert.equal(currentToken("drawn", "theme=dark; csrftoken=newest; x=1"), "newest");
  assert.equal(currentToken("drawn", "not_csrftoken=other"), "drawn");
  assert.equal(currentToken("drawn", ""), "drawn");
});
