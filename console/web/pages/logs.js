// Logs of a pod, or of all pods of a workload, as they come.

import { lines, withQuery } from '../api.js';
import { fill, h } from '../dom.js';
import { describeError } from '../format.js';
import { resourceOf } from './list.js';

/** The most lines that are kept; older ones go. */
const KEPT = 20000;
const COLORS = 8;

/** The page of the logs of a workload by address. */
export async function workloadLogs(root, state, [, id, namespace, name]) {
  const resource = resourceOf(state, id);
  const here = { resource, namespace, name, path: resource.object(namespace, name) };
  return logsTab(root, state, here, await state.api.get(here.path));
}

export async function logsTab(body, state, here, value) {
  const view = new LogView();
  const pods = await podsOf(state, here, value);
  const containers = [...new Set(pods.flatMap((pod) => containersOf(pod)))];
  const choice = /** @type {HTMLSelectElement} */ (h('select', { 'aria-label': 'Container', onchange: () => restart() },
    containers.length > 1 && h('option', { value: '' }, 'All containers'), containers.map((one) => h('option', { value: one }, one))));
  const previous = /** @type {HTMLInputElement} */ (h('input', { type: 'checkbox', onchange: () => restart() }));
  const times = /** @type {HTMLInputElement} */ (h('input', { type: 'checkbox', onchange: () => restart() }));
  const follow = /** @type {HTMLInputElement} */ (h('input', { type: 'checkbox', checked: true, onchange: () => view.stick(follow.checked) }));
  const search = h('input', { type: 'search', placeholder: 'Filter', 'aria-label': 'Filter the lines', oninput: (event) => view.filter(event.target.value) });
  let abort = new AbortController();

  const restart = () => {
    abort.abort();
    abort = new AbortController();
    view.clear();
    const wanted = pods.flatMap((pod) => containersOf(pod)
      .filter((container) => !choice.value || container === choice.value)
      .map((container) => ({ pod: pod.metadata.name, container })));
    wanted.forEach((source, at) => read(source, at, wanted.length, abort.signal));
    if (!wanted.length) view.add('', 'There is no pod to read from.', 0);
  };
  const read = async ({ pod, container }, at, count, signal) => {
    const query = { container, follow: previous.checked ? '' : 'true', previous: previous.checked ? 'true' : '', timestamps: times.checked ? 'true' : '', tailLines: count > 1 ? 200 : 2000 };
    const label = count === 1 ? '' : containers.length > 1 ? `${pod} ${container}` : pod;
    try {
      const answer = await state.api.send(withQuery(`/api/v1/namespaces/${here.namespace}/pods/${encodeURIComponent(pod)}/log`, query), { accept: '*/*', signal });
      for await (const line of lines(answer.body)) view.add(label, line, at % COLORS);
    } catch (error) {
      if (!signal.aborted) view.add(label, describeError(error), at % COLORS);
    }
  };
  fill(body,
    h('div.buttons', {}, choice, search,
      h('label', {}, follow, ' Follow'), h('label', {}, times, ' Times'), h('label', {}, previous, ' Previous'),
      h('button', { onclick: () => view.download(`${here.name}.log`) }, 'Download'),
      h('button', { onclick: () => view.clear() }, 'Clear')),
    view.element);
  restart();
  return { stop: () => abort.abort() };
}

/** Returns the pod itself or the pods that a workload selects. */
async function podsOf(state, here, value) {
  if (here.resource.id === 'pods') return [value];
  const labels = Object.entries(value.spec?.selector?.matchLabels ?? value.spec?.selector ?? {});
  if (!labels.length) return [];
  const selector = labels.map(([key, one]) => `${key}=${one}`).join(',');
  const list = await state.api.get(withQuery(`/api/v1/namespaces/${here.namespace}/pods`, { labelSelector: selector, limit: 50 }));
  return list.items ?? [];
}

function containersOf(pod) {
  return ['initContainers', 'containers', 'ephemeralContainers'].flatMap((key) => pod.spec?.[key] ?? []).map((one) => one.name);
}

/** Lines in a scrolling view. Control characters of a log line are shown, never obeyed. */
class LogView {
  constructor() {
    this.all = [];
    this.search = '';
    this.isStuck = true;
    this.isScheduled = false;
    this.fresh = [];
    this.element = h('div.log', { role: 'log', tabIndex: 0, 'aria-label': 'Log lines' });
    this.element.addEventListener('wheel', () => {
      const { scrollTop, clientHeight, scrollHeight } = this.element;
      this.isStuck = scrollTop + clientHeight > scrollHeight - 40;
    }, { passive: true });
  }

  add(label, line, color) {
    const entry = { label, line: clean(line), color };
    this.all.push(entry);
    if (this.all.length > KEPT) this.all.splice(0, KEPT / 10);
    if (this.matches(entry)) this.fresh.push(entry);
    if (this.isScheduled) return;
    this.isScheduled = true;
    setTimeout(() => this.flush(), 60);
  }

  flush() {
    this.isScheduled = false;
    this.element.append(...this.fresh.splice(0).slice(-KEPT).map((entry) => draw(entry)));
    while (this.element.childElementCount > KEPT) this.element.firstElementChild?.remove();
    if (this.isStuck) this.element.scrollTop = this.element.scrollHeight;
  }

  matches(entry) {
    return !this.search || entry.line.toLowerCase().includes(this.search) || entry.label.toLowerCase().includes(this.search);
  }

  filter(search) {
    this.search = search.toLowerCase();
    this.fresh = this.all.filter((entry) => this.matches(entry));
    fill(this.element);
    this.flush();
  }

  stick(isStuck) {
    this.isStuck = isStuck;
    if (isStuck) this.flush();
  }

  clear() {
    this.all = [];
    this.fresh = [];
    fill(this.element);
  }

  download(name) {
    const text = this.all.map((entry) => (entry.label ? `${entry.label} ${entry.line}` : entry.line)).join('\n');
    const anchor = h('a', { href: URL.createObjectURL(new Blob([text], { type: 'text/plain' })), download: name });
    anchor.click();
    URL.revokeObjectURL(anchor.href);
  }
}

function draw({ label, line, color }) {
  return h('div', {}, label && h(`span.source.c${color}`, {}, `${label} `), line);
}

/** Removes colours and shows other control characters as symbols. */
function clean(line) {
  return line
    .replace(/\x1b\[[0-9;?]*[A-Za-z]/g, '')
    .replace(/\r$/, '')
    .replace(/[\x00-\x08\x0b-\x1f]/g, (one) => String.fromCharCode(0x2400 + one.charCodeAt(0)))
    // The rest of them, and those that turn the direction of the text.
    .replace(/[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (one) => `<U+${one.charCodeAt(0).toString(16).toUpperCase().padStart(4, '0')}>`);
}
