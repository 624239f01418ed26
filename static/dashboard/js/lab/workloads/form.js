/** The form of a workload: of each group, the fields of the chosen kind are shown. Without it, all are. */
import "../../tenants.js";

for (const group of document.querySelectorAll("[data-group]")) {
  const select = /** @type {HTMLSelectElement} */ (group.querySelector("select"));
  const show = () => showKind(group, select.value);
  select.addEventListener("change", show);
  show();
}

/** @param {Element} group @param {string} kind */
function showKind(group, kind) {
  for (const field of /** @type {NodeListOf<HTMLElement>} */ (group.querySelectorAll("[data-kinds]"))) {
    field.hidden = !(field.dataset.kinds ?? "").split(" ").includes(kind);
  }
}
