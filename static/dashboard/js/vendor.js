/** Chart.js with the plugin for markers, as npm brought them: scripts that leave globals, taken up here alone. */
import "../../vendor/chart.umd.js";
import "../../vendor/chartjs-plugin-annotation.min.js";

/** @type {typeof import("chart.js").Chart} */
export const Chart = /** @type {any} */ (globalThis).Chart;
