// What can be done with an object: only what the user may do is shown.

import { confirm, dialog, h, notify } from './dom.js';
import { describeError } from './format.js';

const MERGE = 'application/merge-patch+json';
const STRATEGIC = 'application/strategic-merge-patch+json';

/**
 * Returns the buttons for an object.
 * @param {any} state
 * @param {{resource: any, namespace: string, name: string, path: string}} here
 * @param {any} value
 */
export async function actionsOf(state, here, value) {
  const { api } = state;
  const { resource, namespace, name } = here;
  const may = (verb, subresource) => api.can(verb, { group: resource.group, plural: resource.plural, subresource, namespace, name });
  const all = [];
  const offer = (label, isAllowed, act, tone) => all.push({ label, isAllowed, act, tone });

  if (resource.subresources.includes('scale')) offer('Scale', may('patch', 'scale'), () => scale(api, here, value));
  if (value.spec?.template && /^(Deployment|StatefulSet|DaemonSet)$/.test(resource.kind)) {
    offer('Restart', may('patch'), () => restart(api, here));
  }
  if (resource.kind === 'Deployment') {
    const isPaused = Boolean(value.spec?.paused);
    offer(isPaused ? 'Resume' : 'Pause', may('patch'), () => patch(api, here, { spec: { paused: !isPaused } }, MERGE));
    offer('Roll back', may('patch'), () => rollBack(api, here, value));
  }
  if (resource.kind === 'CronJob') {
    const isSuspended = Boolean(value.spec?.suspend);
    offer(isSuspended ? 'Resume' : 'Suspend', may('patch'), () => patch(api, here, { spec: { suspend: !isSuspended } }, MERGE));
    offer('Run now', api.can('create', { group: 'batch', plural: 'jobs', namespace }), () => runNow(api, here, value));
  }
  if (resource.id === 'nodes') {
    const isCordoned = Boolean(value.spec?.unschedulable);
    offer(isCordoned ? 'Uncordon' : 'Cordon', may('patch'), () => patch(api, here, { spec: { unschedulable: !isCordoned || null } }, STRATEGIC));
    offer('Drain', api.can('create', { plural: 'pods', subresource: 'eviction' }), () => drain(api, here), 'danger');
  }
  if (resource.id === 'pods') {
    offer('Evict', may('create', 'eviction'), () => evict(api, namespace, name).then(() => notify(`${name} is evicted.`)));
    offer('Debug', may('patch', 'ephemeralcontainers'), () => debug(state, here, value));
  }
  offer('Delete', may('delete'), () => remove(state, here), 'danger');

  const allowed = await Promise.all(all.map((one) => one.isAllowed));
  return all.filter((_, at) => allowed[at]).map((one) => h('button', {
    class: one.tone ?? '',
    onclick: async () => {
      try {
        await one.act();
        state.reload?.();
      } catch (error) {
        notify(describeError(error), 'bad');
      }
    },
  }, one.label));
}

async function patch(api, here, body, type, subresource) {
  await api.send(here.path + (subresource ? `/${subresource}` : ''), { method: 'PATCH', type, body });
  notify(`${here.name} is changed.`);
}

async function scale(api, here, value) {
  const field = /** @type {HTMLInputElement} */ (h('input', { type: 'number', min: 0, max: 100000, value: value.spec?.replicas ?? 1, 'aria-label': 'Replicas' }));
  const wanted = await dialog(`Scale ${here.name}`, (close) => h('form', {
    onsubmit: (event) => {
      event.preventDefault();
      close(field.valueAsNumber);
    },
  }, field, h('div.buttons', {}, h('button', { type: 'button', onclick: () => close(null) }, 'Cancel'), h('button.primary', { type: 'submit' }, 'Scale'))));
  if (Number.isInteger(wanted)) await patch(api, here, { spec: { replicas: wanted } }, MERGE, 'scale');
}

function restart(api, here) {
  const annotations = { 'kubectl.kubernetes.io/restartedAt': new Date().toISOString().replace(/\.\d+Z/, 'Z') };
  return patch(api, here, { spec: { template: { metadata: { annotations } } } }, STRATEGIC);
}

/** Puts the template of an earlier ReplicaSet back. */
async function rollBack(api, here, value) {
  const sets = (await api.get(`/apis/apps/v1/namespaces/${here.namespace}/replicasets`)).items ?? [];
  const revisionOf = (one) => Number(one.metadata.annotations?.['deployment.kubernetes.io/revision'] ?? 0);
  const now = revisionOf(value);
  const earlier = sets
    .filter((one) => (one.metadata.ownerReferences ?? []).some((owner) => owner.uid === value.metadata.uid))
    .filter((one) => revisionOf(one) !== now)
    .sort((a, b) => revisionOf(b) - revisionOf(a));
  if (!earlier.length) throw new Error('There is no earlier revision.');
  const images = (one) => one.spec.template.spec.containers.map((container) => container.image).join(', ');
  const chosen = await dialog(`Roll ${here.name} back`, (close) => [
    h('p', {}, `It is at revision ${now}.`),
    h('div.choices', {}, earlier.map((one) => h('button', { onclick: () => close(one) }, `Revision ${revisionOf(one)}: ${images(one)}`))),
    h('div.buttons', {}, h('button', { onclick: () => close(null) }, 'Cancel')),
  ]);
  if (!chosen) return;
  const template = structuredClone(chosen.spec.template);
  delete template.metadata.labels['pod-template-hash'];
  const body = [{ op: 'replace', path: '/spec/template', value: template }];
  await api.send(here.path, { method: 'PATCH', type: 'application/json-patch+json', body });
  notify(`${here.name} goes back to revision ${revisionOf(chosen)}.`);
}

async function runNow(api, here, value) {
  const name = `${here.name.slice(0, 50)}-${Math.random().toString(36).slice(2, 8)}`;
  const template = value.spec.jobTemplate;
  await api.send(`/apis/batch/v1/namespaces/${here.namespace}/jobs`, {
    method: 'POST',
    body: {
      apiVersion: 'batch/v1',
      kind: 'Job',
      metadata: {
        name,
        labels: template.metadata?.labels,
        annotations: { ...template.metadata?.annotations, 'cronjob.kubernetes.io/instantiate': 'manual' },
        ownerReferences: [{ apiVersion: 'batch/v1', kind: 'CronJob', name: here.name, uid: value.metadata.uid }],
      },
      spec: template.spec,
    },
  });
  notify(`Job ${name} is created.`);
}

function evict(api, namespace, name) {
  return api.send(`/api/v1/namespaces/${namespace}/pods/${encodeURIComponent(name)}/eviction`, {
    method: 'POST',
    body: { apiVersion: 'policy/v1', kind: 'Eviction', metadata: { namespace, name } },
  });
}

/** Cordons a node and evicts its pods, as `kubectl drain --ignore-daemonsets --delete-emptydir-data` does. */
async function drain(api, here) {
  const sure = await confirm(`Drain ${here.name}`, 'The node takes no new pods, and its pods are evicted; those of DaemonSets and static pods stay.', 'Drain');
  if (!sure) return;
  await patch(api, here, { spec: { unschedulable: true } }, STRATEGIC);
  const pods = (await api.get(`/api/v1/pods?fieldSelector=${encodeURIComponent(`spec.nodeName=${here.name}`)}`)).items ?? [];
  const stays = (pod) => pod.metadata.annotations?.['kubernetes.io/config.mirror'] !== undefined
    || (pod.metadata.ownerReferences ?? []).some((owner) => owner.kind === 'DaemonSet' && owner.controller);
  const leaving = pods.filter((pod) => !stays(pod) && !/^(Succeeded|Failed)$/.test(pod.status?.phase));
  const refused = [];
  for (const pod of leaving) {
    // A disruption budget answers 429 until another pod is ready.
    for (let attempt = 0; ; attempt += 1) {
      try {
        await evict(api, pod.metadata.namespace, pod.metadata.name);
        break;
      } catch (error) {
        if (error.code === 404) break;
        if (error.code !== 429 || attempt >= 12) {
          refused.push(`${pod.metadata.namespace}/${pod.metadata.name}: ${describeError(error)}`);
          break;
        }
        await new Promise((resolve) => setTimeout(resolve, 5000));
      }
    }
  }
  if (refused.length) notify(`Not evicted: ${refused.join('; ')}`, 'bad');
  else notify(`${leaving.length} pods of ${here.name} are evicted.`);
}

/** Adds a container with tools to a running pod, and opens a terminal in it. */
async function debug(state, here, value) {
  const image = /** @type {HTMLInputElement} */ (h('input', { value: 'busybox', 'aria-label': 'Image' }));
  const target = /** @type {HTMLSelectElement} */ (h('select', { 'aria-label': 'Container whose processes it sees' }, value.spec.containers.map((one) => h('option', {}, one.name))));
  const wanted = await dialog(`Debug ${here.name}`, (close) => h('form', {
    onsubmit: (event) => {
      event.preventDefault();
      close({ image: image.value, target: target.value });
    },
  }, h('label', {}, 'Image ', image), h('label', {}, 'Target ', target), h('div.buttons', {}, h('button', { type: 'button', onclick: () => close(null) }, 'Cancel'), h('button.primary', { type: 'submit' }, 'Start'))));
  if (!wanted) return;
  const name = `debugger-${Math.random().toString(36).slice(2, 7)}`;
  await state.api.send(`${here.path}/ephemeralcontainers`, {
    method: 'PATCH',
    type: STRATEGIC,
    body: { spec: { ephemeralContainers: [{ name, image: wanted.image, stdin: true, tty: true, targetContainerName: wanted.target }] } },
  });
  notify(`Container ${name} starts; choose it in the terminal.`);
  state.go('object', 'pods', here.namespace, here.name, 'terminal');
}

async function remove(state, here) {
  const sure = await confirm(`Delete ${here.resource.kind} ${here.name}`, here.namespace ? `In namespace ${here.namespace}. What it owns is deleted too.` : 'What it owns is deleted too.', 'Delete');
  if (!sure) return;
  await state.api.send(here.path, { method: 'DELETE', body: { apiVersion: 'v1', kind: 'DeleteOptions', propagationPolicy: 'Background' } });
  notify(`${here.name} is being deleted.`);
  state.go('list', here.resource.id);
}
