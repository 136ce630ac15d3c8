// What the user may do in a namespace: resources by verbs.

import { fill, h } from '../dom.js';

const VERBS = ['get', 'list', 'watch', 'create', 'update', 'patch', 'delete', 'deletecollection'];

export async function access(root, state) {
  const namespace = state.namespace || 'default';
  const review = await state.api.get('/apis/authorization.k8s.io/v1/selfsubjectrulesreviews', {
    method: 'POST',
    body: { apiVersion: 'authorization.k8s.io/v1', kind: 'SelfSubjectRulesReview', spec: { namespace } },
  });
  const rules = review.status?.resourceRules ?? [];
  const may = (resource, verb) => rules.find((rule) => covers(rule.verbs, verb)
    && covers(rule.apiGroups, resource.group) && (covers(rule.resources, resource.plural)));
  const mark = (resource, verb) => {
    const rule = may(resource, verb);
    if (!rule) return h('td.quiet', { 'aria-label': 'no' }, '·');
    const names = rule.resourceNames?.length ? rule.resourceNames.join(', ') : '';
    return h(`td.${names ? 'wait' : 'good'}`, { title: names, 'aria-label': names ? `only ${names}` : 'yes' }, names ? '(✓)' : '✓');
  };
  const user = state.session.user ?? {};
  const resources = [...(state.api.resources ?? [])].sort((a, b) => a.group.localeCompare(b.group) || a.plural.localeCompare(b.plural));
  const urls = (review.status?.nonResourceRules ?? []).map((rule) => `${rule.verbs.join(', ')} ${rule.nonResourceURLs.join(', ')}`);
  fill(root, h('div.page', {},
    h('h1', {}, 'What may I do?'),
    h('p', {}, 'You are ', h('strong', {}, user.username ?? ''), ', of ', (user.groups ?? []).join(', ') || 'no group', ', in namespace ', h('strong', {}, namespace), '.'),
    review.status?.incomplete ? h('p.wait', {}, `The list is not complete: ${review.status.evaluationError ?? 'another authorizer decides too'}.`) : null,
    h('table.access', {},
      h('thead', {}, h('tr', {}, h('th', {}, 'Resource'), h('th', {}, 'Group'), VERBS.map((verb) => h('th', {}, verb)))),
      h('tbody', {}, resources.map((resource) => h('tr', {},
        h('td', {}, h('a', { href: state.link('list', resource.id) }, resource.plural)), h('td.quiet', {}, resource.group), VERBS.map((verb) => mark(resource, verb)))))),
    urls.length ? [h('h2', {}, 'Paths'), h('ul', {}, urls.map((one) => h('li', {}, one)))] : null));
  return {};
}

function covers(list, wanted) {
  return (list ?? []).some((one) => one === '*' || one === wanted);
}
