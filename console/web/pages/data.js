// The entries of a ConfigMap or a Secret; a Secret's are shown on click.

import { fill, h, notify } from '../dom.js';

export function dataTab(body, state, here, value) {
  const isSecret = here.resource.id === 'secrets';
  const entries = [
    ...Object.entries(value.data ?? {}).map(([key, one]) => ({ key, text: isSecret ? decoded(one) : one })),
    ...Object.entries(value.binaryData ?? {}).map(([key, one]) => ({ key, text: decoded(one) })),
  ].sort((a, b) => a.key.localeCompare(b.key));
  const show = ({ key, text }) => {
    const content = h('pre.value', {}, isSecret ? `${text.length} characters` : text);
    const reveal = h('button', {
      onclick: () => {
        fill(content, text);
        reveal.remove();
      },
    }, 'Reveal');
    const copy = h('button', { onclick: () => navigator.clipboard.writeText(text).then(() => notify(`${key} is copied.`)) }, 'Copy');
    return h('section', {}, h('h2', {}, key, ' ', isSecret && reveal, copy), content);
  };
  fill(body, entries.length ? entries.map(show) : h('p.quiet', {}, 'It holds nothing.'));
  return {};
}

/** Returns decoded bytes as text; what is no text as hexadecimal. */
function decoded(base64) {
  const bytes = Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    return [...bytes.slice(0, 4096)].map((byte) => byte.toString(16).padStart(2, '0')).join(' ');
  }
}
