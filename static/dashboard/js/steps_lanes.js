/**
 * The lanes of the picture: cells side by side that are alike are drawn as one. Kinds differ in shape as in colour:
 * decode is a full bar, prefill two thin ones, waiting a line, idle and padded places are hatched.
 *
 * @typedef {import("./steps_paint.js").Scene} Scene
 * @typedef {import("./steps_layout.js").Column} Column
 * @typedef {import("./steps_brush.js").Brush} Brush
 * @typedef {[from: number, height: number]} Bar a part of a lane's height, in pixels from its upper edge
 *
 * @typedef {object} Runs the same cell, side by side, as triples of lane, first column and the one after the last:
 * thousands a frame, so that they are plain numbers
 * @property {number[][]} byKind
 * @property {number[]} padded
 * @property {number[]} ended the last column of a sequence, likewise
 */
import { DECODE, ENDED, HELD, IDLE, KIND_BITS, NOTHING, PADDED, PREEMPTED, PREFILL, WAITING } from "./steps_layout.js";

const ROOMY = 8;
const LEAST_PARTED = 4;
const LANES_A_LINE = 4;

/** @param {Pick<Column, "cells">[]} columns @param {number} numLanes @returns {Runs} */
export function runsOf(columns, numLanes) {
  /** @type {number[][]} */
  const byKind = Array.from({ length: KIND_BITS + 1 }, () => []);
  /** @type {number[]} */
  const padded = [];
  /** @type {number[]} */
  const ended = [];
  for (let lane = 0; lane < numLanes; lane += 1) {
    let from = 0;
    let cell = columns.length > 0 ? columns[0].cells[lane] : NOTHING;
    for (let place = 1; place <= columns.length; place += 1) {
      const next = place < columns.length ? columns[place].cells[lane] : -1;
      if (next === cell && (cell & ENDED) === 0) continue;
      if ((cell & KIND_BITS) !== NOTHING) byKind[cell & KIND_BITS].push(lane, from, place);
      if ((cell & PADDED) !== 0) padded.push(lane, from, place);
      if ((cell & ENDED) !== 0) ended.push(lane, place - 1, place);
      from = place;
      cell = next;
    }
  }
  return { byKind, padded, ended };
}

/**
 * @param {Brush} brush
 * @param {Scene} scene
 * @param {Column[]} columns
 * @param {{top: number, lane: number}} place where the first lane begins, and how high each is
 */
export function paintLanes(brush, { view, numLanes, palette }, columns, { top, lane }) {
  const { columnWidth, width } = view;
  const { context } = brush;
  const margin = lane > ROOMY ? 1 : 0;
  const inner = lane - 1 - margin;
  const third = Math.max(1, Math.round(inner / 3));
  const middle = Math.floor(inner / 2);
  const bottom = numLanes * lane;
  const { byKind, padded, ended } = runsOf(columns, numLanes);

  /** @param {number[]} runs @param {...Bar} bars */
  const draw = (runs, ...bars) => {
    for (const [from, height] of bars) {
      for (let at = 0; at < runs.length; at += 3) {
        const x = runs[at + 1] * columnWidth;
        context.rect(x, top + runs[at] * lane + margin + from, runs[at + 2] * columnWidth - x, height);
      }
    }
  };

  brush.fill(palette["chart-load"], () => {
    draw(byKind[DECODE], [0, inner]);
    draw(byKind[HELD], [middle, 1]);
  });
  brush.fill(palette["chart-prompt"], () => draw(byKind[PREFILL], [0, third], [inner - third, third]));
  brush.fill(palette["chart-wait"], () => draw(byKind[WAITING], [middle - 1, 2]));
  brush.fill(palette.problem, () => draw(byKind[PREEMPTED], [0, inner]));
  brush.hatch(palette["ink-quiet"], () => {
    draw(byKind[IDLE], [0, inner]);
    draw(padded, [third, inner - 2 * third]);
  });
  if (columnWidth >= LEAST_PARTED) {
    brush.fill(palette.surface, () => {
      for (let place = 1; place <= columns.length; place += 1) {
        context.rect(place * columnWidth - 1, top, 1, bottom);
      }
    });
  }
  // Few lines to follow a lane by: more would be mistaken for what is drawn in it.
  brush.fill(palette["chart-grid"], () => {
    for (let y = 0; y <= bottom; y += LANES_A_LINE * lane) context.rect(0, top + y - 1, width, 1);
  });
  const cap = Math.max(1, Math.min(3, columnWidth / 3));
  brush.fill(palette.ink, () => {
    for (let at = 0; at < ended.length; at += 3) {
      context.rect(ended[at + 2] * columnWidth - cap, top + ended[at] * lane + margin, cap, inner);
    }
  });
}
