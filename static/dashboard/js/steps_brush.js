/** The few strokes that the picture of steps is made of, on one canvas. */

const HATCH_PIXELS = 5;
const FONT = "10px system-ui, sans-serif";

/**
 * Owns the patterns made for a canvas. Its unit is the CSS pixel. `trace` adds rectangles to the path that is filled.
 *
 * @param {CanvasRenderingContext2D} context
 */
export function createBrush(context) {
  /** @type {Map<string, CanvasPattern | string>} */
  const stripes = new Map();

  /** @param {string} color */
  function stripesOf(color) {
    const made = stripes.get(color) ?? makeStripes(context, color);
    stripes.set(color, made);
    return made;
  }

  /** @param {string | CanvasPattern} style @param {() => void} trace */
  function fill(style, trace) {
    context.beginPath();
    trace();
    context.fillStyle = style;
    context.fill();
  }

  return {
    context,
    fill,
    /** @param {string} color @param {() => void} trace */
    hatch: (color, trace) => fill(stripesOf(color), trace),
    /**
     * A bar, at once.
     *
     * @param {string} color
     * @param {number} x
     * @param {number} y
     * @param {number} width
     * @param {number} height
     */
    bar(color, x, y, width, height) {
      context.fillStyle = color;
      context.fillRect(x, y, width, height);
    },
    /**
     * A word whose left end of the base line is at `x` and `y`.
     *
     * @param {string} color
     * @param {string} words
     * @param {number} x
     * @param {number} y
     * @param {string} [ground]
     */
    write(color, words, x, y, ground) {
      context.font = FONT;
      if (ground !== undefined) {
        context.fillStyle = ground;
        context.fillRect(x - 2, y - 9, context.measureText(words).width + 4, 12);
      }
      context.fillStyle = color;
      context.fillText(words, x, y);
    },
  };
}

/** @typedef {ReturnType<typeof createBrush>} Brush */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {string} color
 * @returns {CanvasPattern | string} the colour where there are no patterns
 */
function makeStripes(context, color) {
  const tile = new OffscreenCanvas(HATCH_PIXELS, HATCH_PIXELS);
  const pen = tile.getContext("2d");
  if (pen === null) return color;
  pen.strokeStyle = color;
  pen.lineWidth = 1.2;
  for (const offset of [-HATCH_PIXELS, 0, HATCH_PIXELS]) {
    pen.moveTo(offset, HATCH_PIXELS);
    pen.lineTo(offset + HATCH_PIXELS, 0);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat") ?? color;
}
