// How requests travel: from Ingresses and routes over Services to pods and nodes, with the health of each.

import { LiveObjects } from '../api.js';
import { fill, h, svg } from '../dom.js';

const COLUMN = 260;
const BOX = { width: 210, height: 34, gap: 12 };

/** The most boxes of a column; the rest is counted. */
const MOST = 200;

export function map(root, state) {
  const { api } = state;
  const body = h('div.map', {});
  fill(root, h('div.page', {}, h('h1', {}, 'Map', ' ', h('span.quiet', {}, state.namespace || 'all namespaces')), body));
  const watch = (id) => {
    const resource = api.resources?.find((one) => one.id === id);
    return resource ? new LiveObjects(api, resource.path(state.namespace), () => draw()) : null;
  };
  const lists = {
    ingresses: watch('ingresses.networking.k8s.io'),
    routes: watch('httproutes.gateway.networking.k8s.io'),
    services: watch('services'),
    slices: watch('endpointslices.discovery.k8s.io'),
    pods: watch('pods'),
  };
  const all = (name) => lists[name]?.all ?? [];
  const draw = () => {
    const graph = graphOf({ ingresses: all('ingresses'), routes: all('routes'), services: all('services'), slices: all('slices'), pods: all('pods') });
    fill(body, graph.columns.some((column) => column.length) ? picture(state, graph) : h('p.quiet', {}, 'There is no Service here.'));
  };
  return {
    stop() {
      for (const list of Object.values(lists)) list?.stop();
    },
  };
}

/**
 * Returns boxes in columns and the arrows between them.
 * @param {{ingresses: any[], routes: any[], services: any[], slices: any[], pods: any[]}} objects
 */
export function graphOf({ ingresses, routes, services, slices, pods }) {
  const columns = [[], [], [], []];
  const arrows = [];
  const known = new Map();
  const box = (column, kind, resource, namespace, name, tone) => {
    const key = `${kind}/${namespace}/${name}`;
    if (!known.has(key)) {
      known.set(key, { key, column, kind, resource, namespace, name, tone });
      columns[column].push(known.get(key));
    }
    return known.get(key);
  };
  const serviceBox = (namespace, name) => {
    const there = services.some((one) => one.metadata.namespace === namespace && one.metadata.name === name);
    return box(1, 'Service', 'services', namespace, name, there ? '' : 'bad');
  };
  for (const ingress of ingresses) {
    const { namespace, name } = ingress.metadata;
    const backends = [ingress.spec?.defaultBackend, ...(ingress.spec?.rules ?? []).flatMap((rule) => (rule.http?.paths ?? []).map((path) => path.backend))];
    const from = box(0, 'Ingress', 'ingresses.networking.k8s.io', namespace, name, '');
    for (const backend of backends) if (backend?.service) arrows.push([from, serviceBox(namespace, backend.service.name)]);
  }
  for (const route of routes) {
    const { namespace, name } = route.metadata;
    const from = box(0, 'HTTPRoute', 'httproutes.gateway.networking.k8s.io', namespace, name, '');
    for (const backend of (route.spec?.rules ?? []).flatMap((rule) => rule.backendRefs ?? [])) {
      if ((backend.kind ?? 'Service') === 'Service') arrows.push([from, serviceBox(backend.namespace ?? namespace, backend.name)]);
    }
  }
  const podsByName = new Map(pods.map((pod) => [`${pod.metadata.namespace}/${pod.metadata.name}`, pod]));
  for (const service of services) {
    const { namespace, name } = service.metadata;
    const from = serviceBox(namespace, name);
    const own = slices.filter((slice) => slice.metadata.namespace === namespace && slice.metadata.labels?.['kubernetes.io/service-name'] === name);
    const endpoints = own.flatMap((slice) => slice.endpoints ?? []);
    if (service.spec?.selector && !endpoints.some((one) => one.conditions?.ready !== false)) from.tone = 'bad';
    for (const endpoint of endpoints) {
      if (endpoint.targetRef?.kind !== 'Pod') continue;
      const pod = podsByName.get(`${namespace}/${endpoint.targetRef.name}`);
      const to = box(2, 'Pod', 'pods', namespace, endpoint.targetRef.name, endpoint.conditions?.ready === false ? 'wait' : 'good');
      arrows.push([from, to]);
      const node = pod?.spec?.nodeName ?? endpoint.nodeName;
      if (node) arrows.push([to, box(3, 'Node', 'nodes', '', node, '')]);
    }
  }
  return { columns, arrows: unique(arrows) };
}

function unique(arrows) {
  const seen = new Set();
  return arrows.filter(([from, to]) => {
    const key = `${from.key}>${to.key}`;
    if (seen.has(key)) return false;
    seen.add(key);
    return true;
  });
}

function picture(state, { columns, arrows }) {
  const shown = columns.map((column) => column.slice(0, MOST));
  const height = Math.max(...shown.map((column) => column.length)) * (BOX.height + BOX.gap) + 40;
  const at = new Map();
  shown.forEach((column, x) => column.forEach((box, y) => at.set(box, { x: x * COLUMN + 4, y: y * (BOX.height + BOX.gap) + 30 })));
  const line = ([from, to]) => {
    const a = at.get(from);
    const b = at.get(to);
    if (!a || !b) return null;
    const [x1, y1, x2, y2] = [a.x + BOX.width, a.y + BOX.height / 2, b.x, b.y + BOX.height / 2];
    const bend = (x2 - x1) / 2;
    return svg('path', { class: `arrow ${to.tone}`, d: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` });
  };
  const draw = (box) => {
    const { x, y } = at.get(box);
    const label = box.name.length > 30 ? `${box.name.slice(0, 29)}…` : box.name;
    return svg('a', { href: state.link('object', box.resource, box.namespace || '-', box.name) },
      svg('g', { class: `box ${box.tone}`, transform: `translate(${x} ${y})` },
        svg('title', {}, `${box.kind} ${box.namespace ? `${box.namespace}/` : ''}${box.name}`),
        svg('rect', { width: BOX.width, height: BOX.height, rx: 5 }),
        svg('text', { x: 10, y: 22 }, label)));
  };
  const heads = ['Ingress, routes', 'Services', 'Pods', 'Nodes'].map((label, x) => svg('text', { class: 'head', x: x * COLUMN + 4, y: 16 }, `${label}${columns[x].length > MOST ? ` (${columns[x].length})` : ''}`));
  return svg('svg', { width: COLUMN * 4, height, role: 'group', 'aria-label': 'Map of Services' }, heads, arrows.map(line), shown.flat().map(draw));
}
