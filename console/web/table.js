// A table of any number of rows: only the rows in sight are elements.

import { h, fill } from './dom.js';
import { age, tone } from './format.js';

const ROW = 30;
const MARGIN = 10;

/**
 * @typedef {{name: string, type?: string, format?: string, priority?: number, description?: string}} Column
 * @typedef {{uid: string, name: string, namespace: string, created?: string, cells: any[], labels?: any, isDeleting?: boolean, text: string}} Row
 */

export class VirtualTable {
  /**
   * @param {{label: string, open: (row: Row) => void, keys?: Object<string, (row: Row) => void>}} options
   */
  constructor({ label, open, keys = {} }) {
    this.open = open;
    this.keys = keys;
    this.rows = [];
    this.shown = [];
    this.columns = [];
    this.search = '';
    this.sort = { column: -2, isDescending: false };
    this.selected = '';
    this.hasNamespaces = false;
    /** @type {Map<Row, Line>} the lines of the rows in sight */
    this.lines = new Map();
    this.head = h('div.thead', { role: 'row' });
    this.body = h('div.tbody', {});
    this.space = h('div.space', {}, this.body);
    this.view = h('div.view', { tabIndex: 0, role: 'rowgroup', 'aria-label': label, onscroll: () => this.paint() }, this.space);
    this.view.addEventListener('keydown', (event) => this.key(event));
    this.element = h('div.table', { role: 'table', 'aria-label': label }, h('div.headrow', { role: 'rowgroup' }, this.head), this.view);
    this.resize = new ResizeObserver(() => this.paint());
    this.resize.observe(this.view);
  }

  stop() {
    this.resize.disconnect();
  }

  /**
   * @param {Column[]} columns
   * @param {Row[]} rows
   * @param {boolean} hasNamespaces
   */
  update(columns, rows, hasNamespaces) {
    const shown = columns.map((column, index) => ({ ...column, index })).filter((column) => !column.priority);
    const names = shown.map((column) => column.name).join();
    const isNew = names !== this.columns.map((column) => column.name).join() || hasNamespaces !== this.hasNamespaces;
    this.columns = shown;
    this.hasNamespaces = hasNamespaces;
    this.rows = rows;
    if (isNew) this.header();
    this.arrange();
  }

  filter(search) {
    this.search = search.toLowerCase();
    this.view.scrollTop = 0;
    this.arrange();
  }

  get template() {
    const width = (column) => {
      if (column.name === 'Name') return 'minmax(12rem,3fr)';
      if (/^(Age|Ready|Restarts|Available|Up-to-date|Type|Count|Desired|Current)$/i.test(column.name)) return 'minmax(4.5rem,.7fr)';
      return 'minmax(6rem,1.5fr)';
    };
    const namespace = this.hasNamespaces ? 'minmax(8rem,1.5fr) ' : '';
    return namespace + this.columns.map(width).join(' ');
  }

  header() {
    const cell = (label, index, description) => {
      const isSorted = this.sort.column === index;
      const mark = isSorted ? (this.sort.isDescending ? ' ↓' : ' ↑') : '';
      const order = isSorted ? (this.sort.isDescending ? 'descending' : 'ascending') : 'none';
      return h('div', { role: 'columnheader', 'aria-sort': order, title: description ?? '' },
        h('button', { onclick: () => this.sortBy(index) }, label + mark));
    };
    const cells = this.columns.map((column) => cell(column.name, column.index, column.description));
    if (this.hasNamespaces) cells.unshift(cell('Namespace', -1, 'The namespace of the object'));
    fill(this.head, cells);
    this.head.style.gridTemplateColumns = this.template;
    this.lines.clear();
    fill(this.body);
  }

  sortBy(column) {
    const isSame = this.sort.column === column;
    this.sort = { column, isDescending: isSame ? !this.sort.isDescending : false };
    this.header();
    this.arrange();
  }

  /** Filters and sorts; then paints. */
  arrange() {
    const words = this.search.split(/\s+/).filter(Boolean);
    const matching = words.length ? this.rows.filter((row) => words.every((word) => matches(row, word))) : this.rows;
    // Rows keep their order from before: what is nearly in order is sorted at once.
    const added = new Set(matching);
    const kept = this.shown.filter((row) => added.delete(row));
    this.shown = this.sorted([...kept, ...added]);
    this.space.style.height = `${this.shown.length * ROW}px`;
    this.element.setAttribute('aria-rowcount', String(this.shown.length + 1));
    this.paint();
  }

  /** Returns rows in order: by the column, then by name. Each value is read once, not in each comparison. */
  sorted(rows) {
    const { column, isDescending } = this.sort;
    if (column === -2) return rows.sort(byName);
    const definition = this.columns.find((one) => one.index === column);
    // The youngest have the latest time.
    const sign = isDescending !== isAge(definition) ? -1 : 1;
    const valueOf = (row) => (column === -1 ? row.namespace : isAge(definition) ? row.created : row.cells[column]);
    const keyed = rows.map((row) => ({ row, ...sortValue(valueOf(row)) }));
    keyed.sort((a, b) => sign * compareValues(a, b) || byName(a.row, b.row));
    return keyed.map((one) => one.row);
  }

  /** Shows the rows in sight. The elements of rows that left are used again, and only what differs is written. */
  paint() {
    const top = this.view.scrollTop;
    const first = Math.max(0, Math.floor(top / ROW) - MARGIN);
    const last = Math.min(this.shown.length, Math.ceil((top + this.view.clientHeight) / ROW) + MARGIN);
    const rows = this.shown.slice(first, last);
    const before = this.lines;
    this.lines = new Map();
    for (const row of rows) if (before.has(row)) this.lines.set(row, before.get(row));
    const free = [...before].filter(([row]) => !this.lines.has(row)).map(([, line]) => line);
    const now = Date.now();
    rows.forEach((row, index) => {
      const line = this.lines.get(row) ?? free.pop() ?? new Line(this);
      this.lines.set(row, line);
      line.show(row, first + index, now);
      const there = this.body.children[index];
      if (there !== line.element) this.body.insertBefore(line.element, there ?? null);
    });
    for (const line of free) line.element.remove();
    this.body.style.transform = `translateY(${first * ROW}px)`;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.shown.findIndex((row) => row.uid === this.selected);
    const page = Math.max(1, Math.floor(this.view.clientHeight / ROW) - 1);
    const moves = { j: at + 1, ArrowDown: at + 1, k: at - 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: this.shown.length - 1 };
    if (event.key in moves) {
      this.select(Math.min(this.shown.length - 1, Math.max(0, moves[event.key])));
      event.preventDefault();
      return;
    }
    const row = this.shown[at];
    if (!row) return;
    const action = event.key === 'Enter' ? this.open : this.keys[event.key];
    if (!action) return;
    action(row);
    event.preventDefault();
    event.stopPropagation();
  }

  select(at) {
    const row = this.shown[at];
    if (!row) return;
    this.selected = row.uid;
    const top = at * ROW;
    if (top < this.view.scrollTop) this.view.scrollTop = top;
    else if (top + ROW > this.view.scrollTop + this.view.clientHeight) this.view.scrollTop = top + ROW - this.view.clientHeight;
    this.paint();
  }
}

/** The element of a row in sight. */
class Line {
  /** @param {VirtualTable} table */
  constructor(table) {
    this.table = table;
    this.row = null;
    this.values = [];
    this.cells = table.hasNamespaces ? [h('div.quiet', { role: 'cell' })] : [];
    for (const column of table.columns) this.cells.push(h(column.name === 'Name' ? 'div.name' : 'div', { role: 'cell' }));
    this.element = h('div.row', { role: 'row', onclick: () => table.open(this.row) }, this.cells);
    this.element.style.gridTemplateColumns = table.template;
  }

  /** Shows a row at a place of the table. */
  show(row, at, now) {
    this.row = row;
    const { table, element } = this;
    const values = table.columns.map((column) => (isAge(column) ? age(row.created, now) : printed(row.cells[column.index])));
    if (table.hasNamespaces) values.unshift(row.namespace);
    const before = values.length - table.columns.length;
    values.forEach((value, index) => {
      if (value === this.values[index]) return;
      const cell = this.cells[index];
      cell.textContent = value;
      cell.title = value;
      const column = table.columns[index - before];
      if (column && /status|ready|phase|type/i.test(column.name)) cell.className = tone(value);
    });
    this.values = values;
    element.setAttribute('aria-rowindex', String(at + 2));
    element.setAttribute('aria-selected', String(row.uid === table.selected));
    element.classList.toggle('deleting', Boolean(row.isDeleting));
  }
}

function isAge(column) {
  return column !== undefined && (column.name === 'Age' || column.type === 'date');
}

function printed(cell) {
  if (cell === null || cell === undefined) return '';
  return typeof cell === 'object' ? JSON.stringify(cell) : String(cell);
}

/** Matches a word with name, namespace and cells, or `key=value` with labels. */
function matches(row, word) {
  const [key, value] = word.split('=', 2);
  if (value !== undefined) return (row.labels?.[key] ?? '').toLowerCase() === value;
  row.text ||= [row.name, row.namespace, ...row.cells.map(printed)].join('\n').toLowerCase();
  return row.text.includes(word);
}

function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

function byName(a, b) {
  return compare(a.namespace, b.namespace) || compare(a.name, b.name);
}

function sortValue(cell) {
  return { number: typeof cell === 'number' ? cell : Number.parseFloat(cell), text: printed(cell) };
}

/** Compares the values of two cells: by the numbers that they begin with, else as text. */
function compareValues(a, b) {
  const areNumbers = !Number.isNaN(a.number) && !Number.isNaN(b.number);
  return (areNumbers && a.number - b.number) || compare(a.text, b.text);
}
