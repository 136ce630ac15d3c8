// Which page an address means.

import { access } from './access.js';
import { create } from './create.js';
import { list } from './list.js';
import { map } from './map.js';
import { nodes } from './nodes.js';
import { object } from './object.js';
import { overview } from './overview.js';
import { workloadLogs } from './logs.js';

const PAGES = { list, object, logs: workloadLogs, map, nodes, access, create };

/**
 * @param {string[]} parts of the address
 * @returns {(root: HTMLElement, state: any, parts: string[]) => any}
 */
export function find(parts) {
  if (!parts.length) return overview;
  const page = PAGES[parts[0]];
  if (!page) throw new Error(`There is no page "${parts[0]}".`);
  return page;
}
