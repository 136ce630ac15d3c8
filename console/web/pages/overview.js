// The cluster at a glance: nodes, workloads, use, what is wrong right now and why, and what happened last.

import { LiveObjects, LiveTable } from '../api.js';
import { fill, h } from '../dom.js';
import { bytes, cores, describeError, parseQuantity, tone } from '../format.js';
import { plot, Samples } from '../plot.js';
import { eventTable, timeOf } from './object.js';

const EVERY = 10000;
const MOST_PROBLEMS = 100;

/** The resources whose tables say whether an object is as it should be. */
const WATCHED = ['pods', 'deployments.apps', 'statefulsets.apps', 'daemonsets.apps', 'jobs.batch', 'persistentvolumeclaims', 'nodes'];

export function overview(root, state) {
  const { api } = state;
  const parts = { use: h('section.cards', {}), counts: h('section.cards', {}), problems: h('section', {}), events: h('section', {}) };
  fill(root, h('div.page', {}, h('h1', {}, 'Overview'), parts.use, parts.counts, parts.problems, parts.events));

  const tables = new Map();
  const draw = () => {
    fill(parts.counts, [...tables].map(([resource, table]) => card(state, resource, table)));
    fill(parts.problems, problems(state, tables, events.all));
  };
  const path = (plural) => (state.namespace ? `/api/v1/namespaces/${encodeURIComponent(state.namespace)}/${plural}` : `/api/v1/${plural}`);
  const events = new LiveObjects(api, path('events'), () => {
    const newest = events.all.sort((a, b) => timeOf(b).localeCompare(timeOf(a))).slice(0, 30);
    const about = (event) => {
      const object = event.involvedObject ?? {};
      const resource = api.ofKind(object.apiVersion, object.kind);
      const label = `${object.kind} ${object.name}`;
      return resource ? h('a', { href: state.link('object', resource.id, object.namespace || '-', object.name) }, label) : label;
    };
    fill(parts.events, h('h2', {}, 'Recent changes'),
      events.error ? h('p.quiet', {}, describeError(events.error)) : newest.length ? eventTable(newest, about) : h('p.quiet', {}, 'None in the last hour.'));
    draw();
  });
  for (const id of WATCHED) {
    const resource = api.resources?.find((one) => one.id === id);
    if (resource) tables.set(resource, new LiveTable(api, resource.path(state.namespace), draw));
  }
  const use = new Use(api, parts.use);
  return {
    stop() {
      events.stop();
      use.stop();
      for (const table of tables.values()) table.stop();
    },
  };
}

/** Draws how many objects of a resource are as they should be. */
function card(state, resource, table) {
  const rows = [...table.rows.values()];
  const wrong = rows.filter((row) => trouble(resource, table.columns, row)).length;
  return h('a.card', { href: state.link('list', resource.id) },
    h('span.label', {}, resource.kind),
    h('strong', {}, table.error && !rows.length ? '–' : rows.length.toLocaleString()),
    wrong ? h('span.bad', {}, `${wrong} not well`) : h('span.good', {}, rows.length ? 'well' : ''));
}

/**
 * Returns what is wrong with a row of a table, in a word; empty if nothing is.
 */
export function trouble(resource, columns, row) {
  const cell = (name) => row.cells[columns.findIndex((column) => column.name === name)];
  const isNew = row.created && Date.now() - Date.parse(row.created) < 15000;
  const status = String(cell('Status') ?? '');
  const ready = /^(\d+)\/(\d+)$/.exec(String(cell('Ready') ?? ''));
  if (resource.kind === 'Job') return /Failed|Suspended/.test(status) ? status : '';
  if (resource.kind === 'Node') return /NotReady|SchedulingDisabled/.test(status) ? status : '';
  if (resource.kind === 'DaemonSet') return Number(cell('Ready')) < Number(cell('Desired')) && !isNew ? `${cell('Ready')} of ${cell('Desired')} ready` : '';
  if (resource.kind === 'PersistentVolumeClaim') return status === 'Bound' || isNew ? '' : status;
  if (resource.kind === 'Pod' && /^(Completed|Succeeded)$/.test(status)) return '';
  if (resource.kind === 'Pod' && tone(status) === 'bad') return status;
  if (isNew || row.isDeleting) return '';
  if (status && /Pending|Creating|Init/.test(status)) return status;
  return ready && ready[1] !== ready[2] ? `${ready[1]} of ${ready[2]} ready` : '';
}

/** Draws what is wrong, each with the newest warning about it. */
function problems(state, tables, events) {
  const warnings = new Map();
  for (const event of events) {
    const uid = event.involvedObject?.uid;
    if (event.type !== 'Warning' || !uid) continue;
    const before = warnings.get(uid);
    if (!before || timeOf(before) < timeOf(event)) warnings.set(uid, event);
  }
  const found = [];
  for (const [resource, table] of tables) {
    for (const row of table.rows.values()) {
      const what = trouble(resource, table.columns, row);
      if (what) found.push({ resource, row, what, event: warnings.get(row.uid) });
    }
  }
  if (!found.length) return [h('h2', {}, 'What is wrong'), h('p.good', {}, 'Nothing.')];
  const line = ({ resource, row, what, event }) => h('tr', {},
    h('td', {}, resource.kind),
    h('td', {}, h('a', { href: state.link('object', resource.id, row.namespace || '-', row.name) }, row.namespace ? `${row.namespace}/${row.name}` : row.name)),
    h('td.bad', {}, what),
    h('td.wrap', {}, event?.message ?? ''),
    h('td', {}, h('a', { href: state.link('object', resource.id, row.namespace || '-', row.name, 'why') }, 'Why?')));
  return [
    h('h2', {}, `What is wrong (${found.length})`),
    h('table', {}, h('tbody', {}, found.slice(0, MOST_PROBLEMS).map(line))),
  ];
}

/** The use of CPU and memory by all nodes, from the metrics API. */
class Use {
  constructor(api, element) {
    this.api = api;
    this.element = element;
    this.cpu = new Samples();
    this.memory = new Samples();
    this.timer = setInterval(() => this.read(), EVERY);
    this.read();
  }

  stop() {
    clearInterval(this.timer);
  }

  async read() {
    try {
      const [metrics, nodes] = await Promise.all([this.api.get('/apis/metrics.k8s.io/v1beta1/nodes'), this.api.get('/api/v1/nodes')]);
      const total = (items, pick) => items.reduce((sum, one) => sum + parseQuantity(pick(one)), 0);
      this.cpu.add(total(metrics.items, (one) => one.usage.cpu));
      this.memory.add(total(metrics.items, (one) => one.usage.memory));
      const hasCpu = total(nodes.items, (one) => one.status?.allocatable?.cpu);
      const hasMemory = total(nodes.items, (one) => one.status?.allocatable?.memory);
      const last = (samples) => samples.values[samples.values.length - 1];
      fill(this.element,
        this.card('CPU', `${cores(last(this.cpu))} of ${cores(hasCpu)} cores`, this.cpu, hasCpu),
        this.card('Memory', `${bytes(last(this.memory))} of ${bytes(hasMemory)}`, this.memory, hasMemory));
    } catch {
      fill(this.element);
    }
  }

  card(label, text, samples, limit) {
    return h('div.card', {}, h('span.label', {}, label), h('strong', {}, text), plot(samples.values, limit, `${label}: ${text}`));
  }
}
