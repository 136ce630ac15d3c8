// An object as YAML, as the server writes it; edits are applied by the server, after a dry run whose difference is shown.

import { ApiError, withQuery } from '../api.js';
import { confirm, fill, h, notify } from '../dom.js';
import { describeError } from '../format.js';
import { diff, hunks } from '../diff.js';

const YAML = 'application/yaml';
const MANAGER = 'corten-console';

/** Returns YAML without the fields that the server writes itself, so that it can be sent back. */
export function withoutServerFields(text) {
  const result = [];
  let skipped = -1;
  let isInMetadata = false;
  for (const line of text.split('\n')) {
    const indent = line.search(/\S/);
    if (skipped >= 0) {
      // Items of a list may be indented as their key is.
      if (indent > skipped || indent === -1 || (indent === skipped && line.trimStart().startsWith('- '))) continue;
      skipped = -1;
    }
    if (indent === 0) isInMetadata = line.startsWith('metadata:');
    const key = /^\s*([A-Za-z]+):/.exec(line)?.[1] ?? '';
    const isServers = (isInMetadata && indent === 2 && /^(managedFields|creationTimestamp|uid|resourceVersion|generation|selfLink)$/.test(key))
      || (indent === 0 && key === 'status');
    if (isServers) skipped = indent;
    else result.push(line);
  }
  return result.join('\n');
}

export async function yamlTab(body, state, here) {
  const { api } = state;
  const load = async () => withoutServerFields(await api.text(here.path, { accept: YAML }));
  let original = await load();
  const editor = /** @type {HTMLTextAreaElement} */ (h('textarea.editor', { spellcheck: false, 'aria-label': `YAML of ${here.name}`, value: original }));
  const mayEdit = await api.can('patch', { group: here.resource.group, plural: here.resource.plural, namespace: here.namespace, name: here.name });
  editor.readOnly = !mayEdit;
  const output = h('div.output', { 'aria-live': 'polite' });
  const apply = (query) => api.send(withQuery(here.path, { fieldManager: MANAGER, ...query }), {
    method: 'PATCH', type: 'application/apply-patch+yaml', accept: YAML, body: editor.value,
  }).then((answer) => answer.text());

  /** Applies; when another manager owns a field, asks whether to take it. */
  const applied = async (query) => {
    try {
      return await apply(query);
    } catch (error) {
      if (!(error instanceof ApiError) || error.code !== 409 || query.force) throw error;
      if (query.dryRun) return apply({ ...query, force: 'true' });
      const owners = (error.status?.details?.causes ?? []).map((cause) => `${cause.field}: ${cause.message}`).join('\n');
      const sure = await confirm('Another writer owns these fields', owners || describeError(error), 'Take them');
      return sure ? apply({ ...query, force: 'true' }) : null;
    }
  };
  const attempt = (work) => async () => {
    fill(output);
    try {
      await work();
    } catch (error) {
      fill(output, h('p.bad', { role: 'alert' }, describeError(error)));
    }
  };
  const preview = attempt(async () => {
    const after = withoutServerFields(await applied({ dryRun: 'All' }));
    const lines = hunks(diff(await load(), after));
    fill(output, lines.length ? difference(lines) : h('p.quiet', {}, 'Nothing would change.'));
  });
  const save = attempt(async () => {
    const answer = await applied({});
    if (answer === null) return;
    original = withoutServerFields(answer);
    editor.value = original;
    notify(`${here.name} is applied.`);
  });
  const reset = attempt(async () => {
    original = await load();
    editor.value = original;
  });
  const download = () => {
    const anchor = h('a', { href: URL.createObjectURL(new Blob([editor.value], { type: YAML })), download: `${here.name}.yaml` });
    anchor.click();
    URL.revokeObjectURL(anchor.href);
  };
  fill(body,
    h('div.buttons', {},
      mayEdit && h('button', { onclick: preview }, 'Show the difference'),
      mayEdit && h('button.primary', { onclick: save }, 'Apply'),
      h('button', { onclick: reset }, 'Reload'),
      h('button', { onclick: download }, 'Download'),
      !mayEdit && h('span.quiet', {}, 'You may read this object, not change it.')),
    output, editor);
  const leave = (event) => {
    if (editor.value !== original) event.preventDefault();
  };
  window.addEventListener('beforeunload', leave);
  return { stop: () => window.removeEventListener('beforeunload', leave) };
}

/** Draws lines that were kept, removed and added. */
export function difference(lines) {
  const tones = { '+': 'added', '-': 'removed' };
  return h('pre.diff', {}, lines.map(({ mark, line }) => h('div', { class: tones[mark] ?? '' }, `${mark} ${line}`)));
}
