// Nodes with their pods, their use and their conditions.

import { LiveObjects } from '../api.js';
import { fill, h } from '../dom.js';
import { age, bytes, cores, describeError, parseQuantity, tone } from '../format.js';
import { bar } from '../plot.js';

/** The most pods drawn for one node. */
const MOST = 400;

export function nodes(root, state) {
  const { api } = state;
  const body = h('div.nodes', {});
  fill(root, h('div.page', {}, h('h1', {}, 'Nodes'), body));
  let metrics = new Map();
  const draw = () => {
    if (all.error) {
      fill(body, h('p.bad', {}, describeError(all.error)));
      return;
    }
    const byNode = new Map();
    for (const pod of pods.all) {
      const on = pod.spec?.nodeName ?? '';
      byNode.set(on, [...(byNode.get(on) ?? []), pod]);
    }
    const sorted = all.all.sort((a, b) => a.metadata.name.localeCompare(b.metadata.name));
    const waiting = byNode.get('') ?? [];
    fill(body,
      waiting.length ? h('section.node', {}, h('h2.wait', {}, `${waiting.length} ${waiting.length === 1 ? 'pod' : 'pods'} without a node`), squares(state, waiting)) : null,
      sorted.map((node) => section(state, node, byNode.get(node.metadata.name) ?? [], metrics.get(node.metadata.name))));
  };
  const all = new LiveObjects(api, '/api/v1/nodes', draw);
  const pods = new LiveObjects(api, '/api/v1/pods', draw);
  const read = () => api.get('/apis/metrics.k8s.io/v1beta1/nodes').then((list) => {
    metrics = new Map(list.items.map((one) => [one.metadata.name, one.usage]));
    draw();
  }, () => {});
  read();
  const timer = setInterval(read, 15000);
  return {
    stop() {
      clearInterval(timer);
      all.stop();
      pods.stop();
    },
  };
}

function section(state, node, pods, use) {
  const conditions = node.status?.conditions ?? [];
  const isReady = conditions.some((one) => one.type === 'Ready' && one.status === 'True');
  const pressures = conditions.filter((one) => one.type !== 'Ready' && one.status === 'True').map((one) => one.type);
  const has = node.status?.allocatable ?? {};
  const requested = (resource) => pods
    .filter((pod) => !/^(Succeeded|Failed)$/.test(pod.status?.phase))
    .flatMap((pod) => pod.spec?.containers ?? [])
    .reduce((sum, one) => sum + parseQuantity(one.resources?.requests?.[resource]), 0);
  const row = (label, resource, print) => {
    const limit = parseQuantity(has[resource]);
    const used = parseQuantity(use?.[resource]);
    const asked = requested(resource);
    return [
      h('dt', {}, label),
      h('dd', {}, use ? `${print(used)} used, ` : '', `${print(asked)} requested of ${print(limit)}`, bar((use ? used : asked) / limit, `${label} of ${node.metadata.name}`)),
    ];
  };
  return h('section.node', {},
    h('h2', {},
      h('a', { href: state.link('object', 'nodes', '-', node.metadata.name) }, node.metadata.name), ' ',
      h(`span.${isReady ? 'good' : 'bad'}`, {}, isReady ? 'Ready' : 'NotReady'),
      node.spec?.unschedulable ? h('span.wait', {}, ' cordoned') : '',
      pressures.map((one) => h('span.bad', {}, ` ${one}`))),
    h('p.quiet', {}, `${node.status?.nodeInfo?.kubeletVersion ?? ''} · ${node.status?.nodeInfo?.osImage ?? ''} · ${pods.length} of ${has.pods ?? '?'} pods · ${age(node.metadata.creationTimestamp)}`),
    h('dl.facts', {}, row('CPU', 'cpu', cores), row('Memory', 'memory', bytes)),
    squares(state, pods));
}

/** Draws every pod as a square with the tone of its phase. */
function squares(state, pods) {
  const sorted = [...pods].sort((a, b) => a.metadata.name.localeCompare(b.metadata.name));
  return h('div.squares', {}, sorted.slice(0, MOST).map((pod) => {
    const waits = (pod.status?.containerStatuses ?? []).find((one) => one.state?.waiting)?.state.waiting.reason;
    const status = waits ?? pod.status?.phase ?? 'Pending';
    const label = `${pod.metadata.namespace}/${pod.metadata.name}: ${status}`;
    return h(`a.square.${tone(status) || 'plain'}`, { href: state.link('object', 'pods', pod.metadata.namespace, pod.metadata.name), title: label, 'aria-label': label });
  }), pods.length > MOST ? h('span.quiet', {}, ` and ${pods.length - MOST} more`) : '');
}
