// How an object came to be: which component did what, and when. A lane for each component, time downwards.

import { fill, h } from '../dom.js';
import { describeError } from '../format.js';
import { ApiError, withQuery } from '../api.js';

/** Milliseconds between two questions: further steps come while the cluster works. */
const EVERY = 3000;
const LANES = ['client', 'controllers', 'scheduler', 'kubelet'];

/** The kinds whose steps are followed. */
export const TRACED = new Set(['Deployment', 'ReplicaSet', 'StatefulSet', 'DaemonSet', 'CronJob', 'Job', 'Pod', 'Service', 'PersistentVolumeClaim']);

export function traceTab(body, state, here) {
  fill(body, h('p.quiet', {}, 'Looking…'));
  const query = { group: here.resource.group, resource: here.resource.plural, namespace: here.namespace, name: here.name };
  let timer = 0;
  let isStopped = false;
  const ask = async () => {
    try {
      const answer = await state.api.get(withQuery('trace', query));
      fill(body, answer.steps?.length ? [omitted(answer.omitted), lanes(answer.steps)] : h('p.quiet', {}, 'Nothing is remembered of it.'));
    } catch (error) {
      // Many ask at once: the next answer comes soon.
      if (!(error instanceof ApiError && error.code === 429)) fill(body, h('p.bad', { role: 'alert' }, describeError(error)));
    }
    if (!isStopped) timer = window.setTimeout(ask, EVERY);
  };
  ask();
  return {
    stop() {
      isStopped = true;
      clearTimeout(timer);
    },
  };
}

/** Says how many steps came before those that are shown. */
function omitted(count) {
  return count ? h('p.quiet', {}, `${count.toLocaleString()} earlier steps are not shown.`) : null;
}

/** Draws steps: the cell of the component that took one holds it. */
function lanes(steps) {
  const row = (step) => h('tr', {},
    h('td', { title: step.time }, (step.milliseconds / 1000).toFixed(3)),
    LANES.map((lane) => h('td.wrap', {}, lane === step.component ? [h('b', {}, step.object), ' ', step.text] : '')));
  return h('table.lanes', {},
    h('thead', {}, h('tr', {}, ['Seconds', ...LANES].map((one) => h('th', {}, one)))),
    h('tbody', {}, steps.map(row)));
}
