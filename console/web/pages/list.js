// The objects of one resource, live.

import { LiveTable } from '../api.js';
import { fill, h } from '../dom.js';
import { describeError } from '../format.js';
import { VirtualTable } from '../table.js';

/**
 * Returns the resource that an address names: `deployments.apps`.
 * @param {any} state
 * @param {string} id
 */
export function resourceOf(state, id) {
  const found = state.api.resources?.find((one) => one.id === id);
  if (!found) throw new Error(`The server has no resource "${id}".`);
  return found;
}

export function list(root, state, [, id]) {
  const resource = resourceOf(state, id);
  const open = (row, tab) => state.go('object', resource.id, row.namespace || '-', row.name, tab);
  const keys = { y: (row) => open(row, 'yaml'), w: (row) => open(row, 'why') };
  if (id === 'pods') Object.assign(keys, { l: (row) => open(row, 'logs'), s: (row) => open(row, 'terminal') });
  else keys.l = (row) => open(row, 'logs');
  const table = new VirtualTable({ label: resource.kind, open: (row) => open(row), keys });
  const count = h('span.quiet', { role: 'status' });
  const search = (event) => table.filter(event.detail);
  window.addEventListener('search', search);

  const live = new LiveTable(state.api, resource.path(state.namespace), () => {
    table.update(live.columns, [...live.rows.values()], resource.isNamespaced && !state.namespace);
    const trouble = live.error ? ` · ${describeError(live.error)}` : '';
    fill(count, `${live.rows.size.toLocaleString()} ${live.state === 'loading' ? '…' : ''}${trouble}`);
    count.classList.toggle('bad', Boolean(live.error));
  });
  fill(root, h('div.page.tall', {}, h('h1', {}, resource.kind, ' ', count), table.element));
  table.view.focus({ preventScroll: true });
  // Ages go on while nothing changes.
  const clock = setInterval(() => table.paint(), 10000);
  return {
    stop() {
      live.stop();
      table.stop();
      clearInterval(clock);
      window.removeEventListener('search', search);
    },
  };
}
