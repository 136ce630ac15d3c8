// A table of any number of rows: only the rows in sight are elements.

import { h, fill } from './dom.js';
import { age, tone } from './format.js';

const ROW = 30;
const MARGIN = 10;

/**
 * @typedef {{name: string, type?: string, format?: string, priority?: number, description?: string}} Column
 * @typedef {{uid: string, name: string, namespace: string, created?: string, cells: any[], labels?: any, isDeleting?: boolean}} Row
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
    this.head = h('div.thead', { role: 'row' });
    this.body = h('div.tbody', { role: 'rowgroup' });
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
    let rows = this.rows;
    if (words.length) rows = rows.filter((row) => words.every((word) => matches(row, word)));
    this.shown = [...rows].sort(this.order());
    this.space.style.height = `${this.shown.length * ROW}px`;
    this.element.setAttribute('aria-rowcount', String(this.shown.length + 1));
    this.paint();
  }

  order() {
    const { column, isDescending } = this.sort;
    const sign = isDescending ? -1 : 1;
    const byName = (a, b) => compare(a.namespace, b.namespace) || compare(a.name, b.name);
    if (column === -2) return byName;
    if (column === -1) return (a, b) => sign * compare(a.namespace, b.namespace) || byName(a, b);
    const definition = this.columns.find((one) => one.index === column);
    if (isAge(definition)) return (a, b) => sign * compare(b.created ?? '', a.created ?? '') || byName(a, b);
    return (a, b) => sign * compareCells(a.cells[column], b.cells[column]) || byName(a, b);
  }

  /** Makes elements of the rows in sight. */
  paint() {
    const top = this.view.scrollTop;
    const first = Math.max(0, Math.floor(top / ROW) - MARGIN);
    const last = Math.min(this.shown.length, Math.ceil((top + this.view.clientHeight) / ROW) + MARGIN);
    const now = Date.now();
    const elements = [];
    for (let at = first; at < last; at += 1) elements.push(this.line(this.shown[at], at, now));
    this.body.style.transform = `translateY(${first * ROW}px)`;
    fill(this.body, elements);
  }

  line(row, at, now) {
    const cells = this.columns.map((column) => {
      const value = isAge(column) ? age(row.created, now) : printed(row.cells[column.index]);
      const shade = /status|ready|phase|type/i.test(column.name) ? tone(value) : '';
      const isName = column.name === 'Name';
      return h('div', { role: 'cell', title: value, class: isName ? 'name' : shade }, value);
    });
    if (this.hasNamespaces) cells.unshift(h('div.quiet', { role: 'cell', title: row.namespace }, row.namespace));
    const line = h('div.row', {
      role: 'row',
      'aria-rowindex': at + 2,
      'aria-selected': row.uid === this.selected,
      onclick: () => this.open(row),
    }, cells);
    if (row.isDeleting) line.classList.add('deleting');
    line.style.gridTemplateColumns = this.template;
    return line;
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
  if (row.name.toLowerCase().includes(word) || row.namespace.includes(word)) return true;
  return row.cells.some((cell) => cell !== null && String(cell).toLowerCase().includes(word));
}

function compare(a, b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

function compareCells(a, b) {
  const [x, y] = [a, b].map((cell) => (typeof cell === 'number' ? cell : Number.parseFloat(cell)));
  const areNumbers = !Number.isNaN(x) && !Number.isNaN(y);
  return (areNumbers && x - y) || compare(printed(a), printed(b));
}
