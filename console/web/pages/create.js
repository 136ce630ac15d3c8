// Creates objects from YAML; several documents are several objects.

import { withQuery } from '../api.js';
import { fill, h } from '../dom.js';
import { describeError } from '../format.js';

const EXAMPLE = `apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  replicas: 2
  selector:
    matchLabels:
      app: web
  template:
    metadata:
      labels:
        app: web
    spec:
      containers:
      - name: web
        image: nginx
        ports:
        - containerPort: 80
`;

export function create(root, state) {
  const editor = /** @type {HTMLTextAreaElement} */ (h('textarea.editor', { spellcheck: false, 'aria-label': 'YAML', placeholder: EXAMPLE }));
  const output = h('div.output', { 'aria-live': 'polite' });
  const run = async (dryRun) => {
    const documents = editor.value.split(/^---\s*$/m).filter((one) => /^\s*[^#\s]/m.test(one));
    const results = [];
    for (const text of documents) {
      try {
        results.push(h('p.good', {}, await applyOne(state, text, dryRun)));
      } catch (error) {
        results.push(h('p.bad', {}, describeError(error)));
      }
      fill(output, results);
    }
    if (!documents.length) fill(output, h('p.quiet', {}, 'There is nothing to create.'));
  };
  const example = () => {
    editor.value = EXAMPLE;
  };
  fill(root, h('div.page.tall', {},
    h('h1', {}, 'Create from YAML'),
    h('div.buttons', {},
      h('button', { onclick: () => run(true) }, 'Check'),
      h('button.primary', { onclick: () => run(false) }, 'Create'),
      h('button', { onclick: example }, 'An example')),
    output, editor));
  editor.focus();
  return {};
}

/** Applies one document by server-side apply, as its author wrote it. */
async function applyOne(state, text, dryRun) {
  const top = (key) => new RegExp(`^${key}:\\s*["']?([^"'\\s#]+)`, 'm').exec(text)?.[1] ?? '';
  const metadata = /^metadata:\s*\n((?:[ \t]+.*\n?|\s*\n)+)/m.exec(text)?.[1] ?? '';
  const below = (key) => new RegExp(`^\\s{1,4}${key}:\\s*["']?([^"'\\s#]+)`, 'm').exec(metadata)?.[1] ?? '';
  const apiVersion = top('apiVersion');
  const kind = top('kind');
  const name = below('name');
  let resource = state.api.ofKind(apiVersion, kind);
  if (!resource) {
    // A CustomResourceDefinition of a document before may have made it.
    await state.api.discover();
    resource = state.api.ofKind(apiVersion, kind);
  }
  if (!resource) throw new Error(`The server does not know ${kind || 'a kind'} of ${apiVersion || 'no apiVersion'}.`);
  if (!name) throw new Error(`${kind} has no metadata.name.`);
  const namespace = below('namespace') || state.namespace || 'default';
  const query = { fieldManager: 'corten-console', fieldValidation: 'Strict', dryRun: dryRun ? 'All' : '' };
  await state.api.send(withQuery(resource.object(namespace, name), query), { method: 'PATCH', type: 'application/apply-patch+yaml', body: text });
  return `${kind} ${resource.isNamespaced ? `${namespace}/` : ''}${name} ${dryRun ? 'is valid' : 'is applied'}.`;
}
