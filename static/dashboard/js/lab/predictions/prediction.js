/** A prediction's page: it is read again until the prediction is computed. */
import { byId, find } from "../../dom.js";
import { morph } from "../../morph.js";
import { readOften, readPart } from "../../parts.js";

const region = byId("refreshed");

async function refresh() {
  if (byId("prediction").dataset["over"] === "true") return;
  const fresh = await readPart(region.dataset["url"] ?? "");
  morph(byId("prediction"), find(fresh, "#prediction"));
}

readOften(refresh, { say: (text) => (byId("refresh-status").textContent = text), everyMs: 1000 });
