// Why an object is not as it should be: the answer of the cluster, cause first.

import { fill, h } from '../dom.js';
import { describeError } from '../format.js';
import { ApiError, withQuery } from '../api.js';

/** Milliseconds between two questions: the cause changes while the cluster works. */
const EVERY = 4000;

export function whyTab(body, state, here) {
  fill(body, h('p.quiet', {}, 'Looking…'));
  const query = { group: here.resource.group, resource: here.resource.plural, namespace: here.namespace, name: here.name };
  let timer = 0;
  let isStopped = false;
  const ask = async () => {
    try {
      const answer = await state.api.get(withQuery('why', query));
      fill(body, answer.findings?.length ? answer.findings.map(finding) : h('p.good', {}, 'Nothing is wrong with it.'));
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

/** Draws a finding: its cause, the evidence for it, and the command that helps. */
export function finding({ cause, evidence, help }) {
  return h('section.finding', {},
    h('h2', {}, cause),
    evidence?.length ? h('ul', {}, evidence.map((one) => h('li', {}, one))) : null,
    help?.length ? h('pre.value', {}, help.join('\n')) : null);
}
