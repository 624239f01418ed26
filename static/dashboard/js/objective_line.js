/**
 * The objective as a line across a chart, in steps where an operator changed it; drawn by hand, since as one more
 * series it would be one to point at.
 *
 * @typedef {import("./objectives.js").Objective} Objective
 */

const DASH = [8, 3];
const REACH_FACTOR = 2.5;

/**
 * How far an axis goes: to the objective too, unless all that was measured would then lie flat at its foot.
 *
 * @param {number} largest what was measured
 * @param {Objective[]} objectives
 */
export function axisReach(largest, objectives) {
  const highest = Math.max(0, ...objectives.map(({ seconds }) => seconds));
  return highest <= REACH_FACTOR * largest ? Math.max(largest, 1.05 * highest) : largest;
}

/**
 * @param {() => {from: number, to: number, objectives: Objective[], color: string}} read
 * @returns {import("chart.js").Plugin<"line">}
 */
export function createObjectiveLine(read) {
  return {
    id: "objective",
    afterDatasetsDraw({ ctx, chartArea: { left, right, top, bottom }, scales: { x, y } }) {
      const { objectives, color } = read();
      ctx.save();
      ctx.beginPath();
      ctx.rect(left, top, right - left, bottom - top);
      ctx.clip();
      ctx.strokeStyle = color;
      ctx.lineWidth = 1.5;
      ctx.setLineDash(DASH);
      ctx.beginPath();
      let before = NaN;
      for (const { from, to, seconds } of objectives) {
        const [begin, end, height] = [x.getPixelForValue(from), x.getPixelForValue(to), y.getPixelForValue(seconds)];
        // A step from the one before where they meet, otherwise a new line.
        if (from === before) ctx.lineTo(begin, height);
        else ctx.moveTo(begin, height);
        ctx.lineTo(end, height);
        before = to;
      }
      ctx.stroke();
      ctx.restore();
    },
  };
}
