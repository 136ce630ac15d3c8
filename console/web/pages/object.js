// One object: its state, its relations, its YAML, its logs, a shell in it, and what can be done with it.

import { LiveObjects, withQuery } from '../api.js';
import { fill, h } from '../dom.js';
import { age, describeError, tone } from '../format.js';
import { actionsOf } from '../actions.js';
import { resourceOf } from './list.js';
import { yamlTab } from './yaml.js';
import { logsTab } from './logs.js';
import { terminalTab } from './terminal.js';
import { dataTab } from './data.js';
import { whyTab } from './why.js';
import { TRACED, traceTab } from './trace.js';

const WORKLOADS = new Set(['Deployment', 'StatefulSet', 'DaemonSet', 'ReplicaSet', 'Job', 'ReplicationController']);

/** Returns the tabs of an object: name and what shows it. */
function tabsOf(resource) {
  const tabs = { state: stateTab, yaml: yamlTab };
  if (resource.id === 'pods' || WORKLOADS.has(resource.kind)) tabs.logs = logsTab;
  if (resource.id === 'pods') tabs.terminal = terminalTab;
  if (resource.id === 'configmaps' || resource.id === 'secrets') tabs.data = dataTab;
  tabs.why = whyTab;
  if (TRACED.has(resource.kind)) tabs.trace = traceTab;
  return tabs;
}

const LABELS = { state: 'State', yaml: 'YAML', logs: 'Logs', terminal: 'Terminal', data: 'Data', why: 'Why?', trace: 'Trace' };

export async function object(root, state, [, id, scope, name, tab = 'state']) {
  const resource = resourceOf(state, id);
  const namespace = scope === '-' ? '' : scope;
  const tabs = tabsOf(resource);
  const show = tabs[tab];
  if (!show) throw new Error(`${resource.kind} has no "${tab}".`);
  const here = { resource, namespace, name, path: resource.object(namespace, name) };
  const value = await state.api.get(here.path);
  const actions = h('div.buttons', {});
  const body = h('div.tab', {});
  fill(root, h('div.page', { class: tab === 'logs' || tab === 'terminal' || tab === 'yaml' ? 'tall' : '' },
    h('h1', {},
      h('a.quiet', { href: state.link('list', resource.id) }, resource.kind), ' ',
      namespace && h('span.quiet', {}, `${namespace}/`), name),
    actions,
    h('div.tabs', { role: 'tablist' }, Object.keys(tabs).map((one) => h('a', {
      role: 'tab',
      href: state.link('object', id, scope, name, one),
      'aria-selected': one === tab,
      class: one === tab ? 'here' : '',
    }, LABELS[one]))),
    body));
  actionsOf(state, here, value).then((buttons) => fill(actions, buttons));
  return show(body, state, here, value);
}

/** Shows conditions, relations and events, and follows their changes. */
function stateTab(body, state, here, first) {
  const parts = { summary: h('section', {}), conditions: h('section', { tabIndex: 0 }), related: h('section', {}), events: h('section', { tabIndex: 0 }) };
  fill(body, Object.values(parts));
  const one = new LiveObjects(state.api, withQuery(here.resource.path(here.namespace), { fieldSelector: `metadata.name=${here.name}` }), () => {
    const value = one.all[0];
    if (value) draw(value);
    else if (one.isLoaded && !one.error) fill(parts.summary, h('p.bad', {}, 'This object is gone.'));
  });
  const draw = (value) => {
    fill(parts.summary, summary(state, value));
    fill(parts.conditions, conditions(value), containers(value));
  };
  draw(first);
  relations(state, here, first).then((found) => fill(parts.related, found));
  const events = eventsOf(state, here, first, parts.events);
  return {
    stop() {
      one.stop();
      events?.stop();
    },
  };
}

function summary(state, value) {
  const meta = value.metadata;
  const rows = [['Created', `${age(meta.creationTimestamp)} ago, ${meta.creationTimestamp ?? ''}`]];
  if (meta.deletionTimestamp) {
    rows.push(['Being deleted', h('span.bad', {}, `since ${meta.deletionTimestamp}; waits for ${(meta.finalizers ?? ['its grace period']).join(', ')}`)]);
  }
  const phase = value.status?.phase;
  if (phase) rows.push(['Phase', h(`span.${tone(phase) || 'plain'}`, {}, phase)]);
  for (const [label, path] of [['Node', 'spec.nodeName'], ['Address', 'status.podIP'], ['Cluster address', 'spec.clusterIP'], ['Type', 'type'], ['Service type', 'spec.type'], ['Class', 'spec.storageClassName'], ['Volume', 'spec.volumeName'], ['Schedule', 'spec.schedule']]) {
    const found = path.split('.').reduce((at, key) => at?.[key], value);
    if (found) rows.push([label, path === 'spec.nodeName' ? h('a', { href: state.link('object', 'nodes', '-', found) }, found) : String(found)]);
  }
  if (value.spec?.replicas !== undefined) {
    rows.push(['Replicas', `${value.status?.readyReplicas ?? 0} ready of ${value.spec.replicas}`]);
  }
  const labels = Object.entries(meta.labels ?? {}).map(([key, one]) => h('code.label', {}, `${key}=${one}`));
  if (labels.length) rows.push(['Labels', labels]);
  return h('dl.facts', {}, rows.map(([label, content]) => [h('dt', {}, label), h('dd', {}, content)]));
}

/** Returns the conditions of an object; those that are not as they should be first. */
function conditions(value) {
  const all = value.status?.conditions ?? [];
  if (!all.length) return null;
  const isWrong = (one) => (/Pressure|Unavailable|Failed|Failure|Disruption|Terminating|Replica|Problem|Deadlock/.test(one.type) ? one.status === 'True' : one.status !== 'True');
  const sorted = [...all].sort((a, b) => Number(isWrong(b)) - Number(isWrong(a)));
  return [h('h2', {}, 'Conditions'), h('table', {},
    h('thead', {}, h('tr', {}, ['Type', 'Status', 'Reason', 'Message', 'Since'].map((one) => h('th', {}, one)))),
    h('tbody', {}, sorted.map((one) => h('tr', {},
      h('td', {}, one.type),
      h('td', { class: isWrong(one) ? 'bad' : 'good' }, one.status),
      h('td', {}, one.reason ?? ''),
      h('td.wrap', {}, one.message ?? ''),
      h('td', {}, age(one.lastTransitionTime))))))];
}

/** Returns the containers of a pod with their states. */
function containers(value) {
  const statuses = ['initContainerStatuses', 'containerStatuses', 'ephemeralContainerStatuses'].flatMap((key) => value.status?.[key] ?? []);
  if (!statuses.length) return null;
  const row = (one) => {
    const [kind, detail] = Object.entries(one.state ?? {})[0] ?? ['waiting', {}];
    const reason = detail.reason ?? kind;
    const word = kind === 'running' ? 'Running' : reason;
    const last = one.lastState?.terminated;
    return h('tr', {},
      h('td', {}, one.name),
      h('td', { class: tone(word) }, word, detail.exitCode === undefined ? '' : ` (exit ${detail.exitCode})`),
      h('td', {}, one.ready ? 'ready' : h('span.wait', {}, 'not ready')),
      h('td', {}, String(one.restartCount ?? 0), last ? ` (last: ${last.reason ?? ''} ${last.exitCode}, ${age(last.finishedAt)} ago)` : ''),
      h('td.wrap', {}, one.image, detail.message ? h('div.bad', {}, detail.message) : ''));
  };
  return [h('h2', {}, 'Containers'), h('table', {},
    h('thead', {}, h('tr', {}, ['Name', 'State', 'Ready', 'Restarts', 'Image'].map((one) => h('th', {}, one)))),
    h('tbody', {}, statuses.map(row)))];
}

/** Returns owners, owned objects, and the Services, routes and claims around an object. */
async function relations(state, here, value) {
  const { api } = state;
  const link = (resource, namespace, name) => h('a', { href: state.link('object', resource.id, namespace || '-', name) }, `${resource.kind} ${name}`);
  const found = [];
  for (const owner of value.metadata.ownerReferences ?? []) {
    const resource = api.ofKind(owner.apiVersion, owner.kind);
    if (resource) found.push(['Owned by', link(resource, resource.isNamespaced ? here.namespace : '', owner.name)]);
  }
  const lists = ['pods', 'replicasets.apps', 'jobs.batch', 'services', 'ingresses.networking.k8s.io', 'httproutes.gateway.networking.k8s.io', 'persistentvolumeclaims', 'endpointslices.discovery.k8s.io', 'controllerrevisions.apps'];
  const wanted = here.namespace ? lists.map((id) => api.resources.find((one) => one.id === id)).filter(Boolean) : [];
  const answers = await Promise.all(wanted.map((resource) => api.get(resource.path(here.namespace)).then((list) => list.items ?? [], () => [])));
  wanted.forEach((resource, at) => {
    for (const item of answers[at]) {
      const isOwned = (item.metadata.ownerReferences ?? []).some((owner) => owner.uid === value.metadata.uid);
      if (isOwned) found.push(['Owns', link(resource, here.namespace, item.metadata.name)]);
      else if (resource.id === 'services' && selects(item.spec?.selector, labelsOf(value))) found.push(['Service', link(resource, here.namespace, item.metadata.name)]);
      else if (here.resource.id === 'services' && resource.id === 'pods' && selects(value.spec?.selector, item.metadata.labels)) found.push(['Pod', link(resource, here.namespace, item.metadata.name)]);
      else if (here.resource.id === 'services' && /ingresses|httproutes/.test(resource.id) && JSON.stringify(item.spec).includes(`"name":${JSON.stringify(here.name)}`)) found.push(['Route', link(resource, here.namespace, item.metadata.name)]);
    }
  });
  for (const volume of value.spec?.volumes ?? value.spec?.template?.spec?.volumes ?? []) {
    const pairs = [['persistentvolumeclaims', volume.persistentVolumeClaim?.claimName], ['configmaps', volume.configMap?.name], ['secrets', volume.secret?.secretName]];
    for (const [id, name] of pairs) {
      const resource = api.resources.find((one) => one.id === id);
      if (name && resource) found.push(['Uses', link(resource, here.namespace, name)]);
    }
  }
  if (!found.length) return null;
  const byLabel = Map.groupBy ? [...Map.groupBy(found, ([label]) => label)] : [...found.reduce((map, one) => map.set(one[0], [...(map.get(one[0]) ?? []), one]), new Map())];
  return [h('h2', {}, 'Related'), h('dl.facts', {}, byLabel.map(([label, all]) => [h('dt', {}, label), h('dd', {}, all.slice(0, 50).map(([, one]) => h('span.related', {}, one)), all.length > 50 ? ` and ${all.length - 50} more` : '')]))];
}

function labelsOf(value) {
  return value.spec?.template?.metadata?.labels ?? (value.kind === 'Pod' ? value.metadata.labels : undefined);
}

function selects(selector, labels) {
  const pairs = Object.entries(selector ?? {});
  return pairs.length > 0 && pairs.every(([key, value]) => labels?.[key] === value);
}

/** Shows the events about an object, the newest first. */
function eventsOf(state, here, value, element) {
  const selector = `involvedObject.uid=${value.metadata.uid}`;
  const events = new LiveObjects(state.api, withQuery(`/api/v1${here.namespace ? `/namespaces/${here.namespace}` : ''}/events`, { fieldSelector: selector }), () => {
    if (events.error) {
      fill(element, h('h2', {}, 'Events'), h('p.quiet', {}, describeError(events.error)));
      return;
    }
    const sorted = events.all.sort((a, b) => timeOf(b).localeCompare(timeOf(a)));
    fill(element, h('h2', {}, 'Events'), sorted.length ? eventTable(sorted) : h('p.quiet', {}, 'None in the last hour.'));
  });
  return events;
}

/** Returns when an event was last seen. */
export function timeOf(event) {
  return event.series?.lastObservedTime ?? event.lastTimestamp ?? event.eventTime ?? event.metadata.creationTimestamp ?? '';
}

export function eventTable(events, about) {
  return h('table', {},
    h('thead', {}, h('tr', {}, ['Last seen', 'Reason', about && 'Object', 'Message', 'Count', 'From'].filter(Boolean).map((one) => h('th', {}, one)))),
    h('tbody', {}, events.map((event) => h('tr', { class: event.type === 'Warning' ? 'warning' : '' },
      h('td', {}, age(timeOf(event))),
      h('td', { class: event.type === 'Warning' ? 'bad' : '' }, event.reason ?? ''),
      about && h('td', {}, about(event)),
      h('td.wrap', {}, event.message ?? ''),
      h('td', {}, String(event.series?.count ?? event.count ?? 1)),
      h('td', {}, event.source?.component || event.reportingComponent || '')))));
}
