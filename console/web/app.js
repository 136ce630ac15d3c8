// The console: sign in, then pages by the part of the address after `#`.

import { Api } from './api.js';
import { fill, h, notify } from './dom.js';
import { describeError } from './format.js';
import { OpenId, Session, signIn } from './session.js';
import { groups } from './navigation.js';
import { help, Keys } from './keys.js';
import * as pages from './pages/index.js';

const root = /** @type {HTMLElement} */ (document.querySelector('#app'));
const session = new Session();
const api = new Api(() => session.token());

/** The state that all pages share. */
const state = { api, session, namespace: '', namespaces: [], go, link };

/** Returns the address of a page. */
function link(...parts) {
  return `#/${parts.filter((part) => part !== undefined && part !== '').map((part) => encodeURIComponent(part)).join('/')}`;
}

function go(...parts) {
  location.hash = link(...parts);
}

async function start() {
  const settings = await fetch('settings.json').then((answer) => (answer.ok ? answer.json() : {}), () => ({}));
  const message = await firstSignIn(settings);
  if (!session.user) await signIn(root, session, settings, message);
  for (;;) {
    await run();
    session.end();
    await signIn(root, session, settings, 'You are signed out.');
  }
}

/** Signs in by what the address holds: the code of a link or the answer of an issuer. Returns what went wrong. */
async function firstSignIn(settings) {
  const code = /^#code=([A-Za-z0-9_-]+)$/.exec(location.hash)?.[1];
  const query = new URLSearchParams(location.search);
  const openId = settings.oidc && new OpenId(settings.oidc);
  try {
    if (code) {
      history.replaceState(null, '', location.pathname);
      await session.redeem(code);
    } else if (openId?.isAnswer(query)) {
      history.replaceState(null, '', location.pathname);
      await openId.comeBack(query, session);
    }
  } catch (error) {
    return describeError(error);
  }
  return undefined;
}

/** Runs the signed-in console until the user signs out or the server no longer takes the token. */
async function run() {
  await api.discover().catch((error) => notify(describeError(error), 'bad'));
  await loadNamespaces();
  return new Promise((resolve) => {
    const end = () => {
      window.removeEventListener('hashchange', route);
      window.removeEventListener('unauthorized', end);
      keys.stop();
      current?.stop?.();
      resolve(undefined);
    };
    const main = h('main#main', { tabIndex: -1 });
    const navigation = h('nav', { 'aria-label': 'Resources' });
    let current = null;

    const route = async () => {
      const parts = location.hash.replace(/^#\/?/, '').split('/').filter(Boolean).map(decodeURIComponent);
      current?.stop?.();
      current = null;
      document.body.classList.remove('menu');
      drawNavigation(navigation, parts);
      fill(main, h('p.quiet', {}, 'Loading…'));
      try {
        const page = pages.find(parts);
        current = await page(main, state, parts);
      } catch (error) {
        fill(main, h('p.bad', { role: 'alert' }, describeError(error)));
      }
      document.title = ['Corten', ...parts].join(' · ');
    };

    const keys = new Keys({
      go: (...parts) => go(...parts),
      search: () => /** @type {HTMLElement|null} */ (document.querySelector('input[type=search]'))?.focus(),
      help: () => help(),
      namespace: () => document.querySelector('#namespace')?.focus(),
    });
    fill(root, header(end), h('div.columns', {}, navigation, main));
    window.addEventListener('hashchange', route);
    window.addEventListener('unauthorized', end);
    state.reload = route;
    route();
  });
}

async function loadNamespaces() {
  const list = await api.get('/api/v1/namespaces').catch(() => ({ items: [] }));
  state.namespaces = list.items.map((one) => one.metadata.name).sort();
}

function header(signOut) {
  const namespaces = /** @type {HTMLSelectElement} */ (h('select#namespace', {
    'aria-label': 'Namespace',
    onchange: () => {
      state.namespace = namespaces.value;
      state.reload?.();
    },
  }, h('option', { value: '' }, 'All namespaces'), state.namespaces.map((name) => h('option', { value: name }, name))));
  namespaces.value = state.namespace;
  return h('header', {},
    h('button.menu', { 'aria-label': 'Menu', onclick: () => document.body.classList.toggle('menu') }, '☰'),
    h('a.brand', { href: '#/' }, h('img', { src: 'icon.svg', alt: '', width: 22, height: 22 }), 'Corten'),
    namespaces,
    h('input', {
      type: 'search',
      placeholder: 'Search  ( / )',
      'aria-label': 'Search the rows of this page',
      oninput: (event) => window.dispatchEvent(new CustomEvent('search', { detail: event.target.value })),
      onkeydown: (event) => {
        if (event.key !== 'Escape' && event.key !== 'Enter' && event.key !== 'ArrowDown') return;
        /** @type {HTMLElement|null} */ (document.querySelector('.view'))?.focus();
        event.preventDefault();
      },
    }),
    h('span.grow', {}),
    h('a.button', { href: link('create') }, 'Create'),
    h('button', { onclick: toggleTheme, 'aria-label': 'Dark or light' }, '◐'),
    h('button', { onclick: () => help(), 'aria-label': 'Keys' }, '?'),
    h('span.quiet.user', { title: (session.user?.groups ?? []).join(', ') }, session.user?.username ?? ''),
    h('button', { onclick: signOut }, 'Sign out'));
}

function toggleTheme() {
  const isDark = matchMedia('(prefers-color-scheme: dark)').matches !== document.documentElement.classList.contains('other');
  document.documentElement.classList.toggle('other');
  notify(isDark ? 'Light' : 'Dark');
}

function drawNavigation(element, parts) {
  const entry = (label, ...to) => {
    const href = link(...to);
    const isHere = to.every((part, at) => parts[at] === part) && (to.length > 0 || parts.length === 0);
    return h('a', { href, class: isHere ? 'here' : '', 'aria-current': isHere ? 'page' : null }, label);
  };
  fill(element,
    entry('Overview'),
    entry('Map', 'map'),
    entry('Nodes', 'nodes'),
    entry('What may I do?', 'access'),
    groups(api.resources ?? []).map((group) => h('details', { open: group.isOpen || group.resources.some((one) => one.id === parts[1]) },
      h('summary', {}, group.name),
      group.resources.map((one) => entry(one.label, 'list', one.id)))));
}

start();
