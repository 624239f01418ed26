/** An overload test's page: it is read again while the test runs, and its charts are drawn when there is something. */
import { byId, find } from "../../dom.js";
import { morph } from "../../morph.js";
import { readOften, readPart } from "../../parts.js";
import { plotBoard } from "../plots.js";

const region = byId("refreshed");

function isOver() {
  return byId("overload").dataset["over"] === "true";
}

function draw() {
  plotBoard(byId("overload-charts")).draw(JSON.parse(byId("overload-plots").textContent || "[]"));
}

async function refresh() {
  if (isOver()) return;
  const fresh = await readPart(region.dataset["url"] ?? "");
  morph(byId("overload"), find(fresh, "#overload"));
  if (isOver()) draw();
}

if (isOver()) draw();
readOften(refresh, { say: (text) => (byId("refresh-status").textContent = text) });
