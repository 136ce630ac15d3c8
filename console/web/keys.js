// Keys for those who do not want to reach for the mouse.

import { dialog, h } from './dom.js';

/** The pages that `g` and a letter open. */
const PAGES = {
  o: [],
  p: ['list', 'pods'],
  d: ['list', 'deployments.apps'],
  s: ['list', 'services'],
  i: ['list', 'ingresses.networking.k8s.io'],
  j: ['list', 'jobs.batch'],
  c: ['list', 'configmaps'],
  v: ['list', 'persistentvolumeclaims'],
  e: ['list', 'events'],
  n: ['nodes'],
  m: ['map'],
  a: ['access'],
};

const HELP = [
  ['/', 'Search the rows; `app=web` searches labels'],
  ['j k ↑ ↓', 'Move in a table'],
  ['Enter', 'Open'],
  ['l', 'Logs of the selected row'],
  ['s', 'Shell in the selected pod'],
  ['y', 'YAML of the selected row'],
  ['w', 'Why is it stuck?'],
  ['n', 'Choose the namespace'],
  ['g o', 'Overview'],
  ['g p', 'Pods'],
  ['g d', 'Deployments'],
  ['g s', 'Services'],
  ['g i', 'Ingresses'],
  ['g j', 'Jobs'],
  ['g c', 'Config maps'],
  ['g v', 'Volume claims'],
  ['g e', 'Events'],
  ['g n', 'Nodes'],
  ['g m', 'Map'],
  ['g a', 'What may I do?'],
  ['?', 'This help'],
  ['Esc', 'Close, or back to the table'],
];

export class Keys {
  /** @param {{go: Function, search: Function, help: Function, namespace: Function}} actions */
  constructor(actions) {
    this.actions = actions;
    this.isGoing = false;
    this.listener = (event) => this.key(event);
    document.addEventListener('keydown', this.listener);
  }

  stop() {
    document.removeEventListener('keydown', this.listener);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.target.closest?.('input, textarea, select, dialog, .terminal, [contenteditable]')) return;
    if (this.isGoing) {
      this.isGoing = false;
      const page = PAGES[event.key];
      if (page) this.actions.go(...page);
      return;
    }
    const actions = { '/': this.actions.search, '?': this.actions.help, n: this.actions.namespace };
    if (event.key === 'g') this.isGoing = true;
    else if (actions[event.key]) actions[event.key]();
    else return;
    event.preventDefault();
  }
}

export function help() {
  return dialog('Keys', (close) => [
    h('dl.keys', {}, HELP.map(([key, does]) => [h('dt', {}, h('kbd', {}, key)), h('dd', {}, does)])),
    h('div.buttons', {}, h('button', { onclick: () => close(null), autofocus: true }, 'Close')),
  ]);
}
