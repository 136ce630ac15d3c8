// The difference of two texts, line by line.

/** The most lines that are compared exactly; longer middles are shown as replaced. */
const MOST = 4000;

/**
 * Returns the lines of both texts: kept, removed (`-`) and added (`+`).
 * @param {string} before
 * @param {string} after
 * @returns {{mark: ' '|'-'|'+', line: string}[]}
 */
export function diff(before, after) {
  const a = before.split('\n');
  const b = after.split('\n');
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  const kept = (lines) => lines.map((line) => ({ mark: /** @type {' '} */ (' '), line }));
  return [
    ...kept(a.slice(0, head)),
    ...middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail)),
    ...kept(a.slice(a.length - tail)),
  ];
}

/** Compares by the longest common subsequence. */
function middle(a, b) {
  if (a.length > MOST || b.length > MOST) {
    return [...a.map((line) => ({ mark: '-', line })), ...b.map((line) => ({ mark: '+', line }))];
  }
  const width = b.length + 1;
  const longest = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      longest[i * width + j] = a[i] === b[j]
        ? longest[(i + 1) * width + j + 1] + 1
        : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    }
  }
  const result = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      result.push({ mark: ' ', line: a[i] });
      i += 1;
      j += 1;
    } else if (j >= b.length || (i < a.length && longest[(i + 1) * width + j] >= longest[i * width + j + 1])) {
      result.push({ mark: '-', line: a[i] });
      i += 1;
    } else {
      result.push({ mark: '+', line: b[j] });
      j += 1;
    }
  }
  return result;
}

/**
 * Returns only the changed lines with some around them.
 * @param {{mark: string, line: string}[]} lines
 * @param {number} [around]
 */
export function hunks(lines, around = 3) {
  const near = new Set();
  lines.forEach((one, at) => {
    if (one.mark === ' ') return;
    for (let n = at - around; n <= at + around; n += 1) near.add(n);
  });
  const result = [];
  lines.forEach((one, at) => {
    if (near.has(at)) result.push(one);
    else if (result.length && result[result.length - 1].mark !== '…') result.push({ mark: '…', line: '' });
  });
  return result;
}
