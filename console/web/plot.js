// Small plots of the last minutes.

import { svg } from './dom.js';

const WIDTH = 240;
const HEIGHT = 48;

/** The samples of some series, the newest last. */
export class Samples {
  constructor(most = 120) {
    this.most = most;
    this.values = [];
  }

  add(value) {
    this.values.push(value);
    if (this.values.length > this.most) this.values.shift();
  }
}

/**
 * Draws a line over an area; `limit` is the top of the scale.
 * @param {number[]} values
 * @param {number} limit
 * @param {string} label for screen readers
 */
export function plot(values, limit, label) {
  const top = Math.max(limit, ...values, 1e-9);
  const step = WIDTH / Math.max(1, values.length - 1);
  const points = values.map((value, at) => `${(at * step).toFixed(1)},${(HEIGHT - (value / top) * (HEIGHT - 2) - 1).toFixed(1)}`);
  return svg('svg', { class: 'plot', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': label },
    points.length > 1 && svg('polygon', { points: `0,${HEIGHT} ${points.join(' ')} ${WIDTH},${HEIGHT}` }),
    points.length > 1 && svg('polyline', { points: points.join(' ') }));
}

/** Draws a share of a whole as a bar. */
export function bar(share, label) {
  const width = Math.round(Math.min(1, Math.max(0, share)) * 100);
  const tone = share > 0.9 ? 'bad' : share > 0.75 ? 'wait' : 'good';
  return svg('svg', { class: `bar ${tone}`, viewBox: '0 0 100 6', preserveAspectRatio: 'none', role: 'img', 'aria-label': label },
    svg('rect', { width: 100, height: 6, class: 'track' }), svg('rect', { width, height: 6 }));
}
