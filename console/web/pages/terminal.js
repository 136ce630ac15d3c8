// A shell in a container, over the exec WebSocket of the API.

import { withQuery } from '../api.js';
import { fill, h } from '../dom.js';
import { base64url } from '../session.js';
import { Terminal } from '../term.js';

const STDIN = 0;
const STDOUT = 1;
const STDERR = 2;
const ERROR = 3;
const RESIZE = 4;

/** The first shell that a container has. */
const SHELLS = ['sh', '-c', 'TERM=xterm-256color; export TERM; command -v bash >/dev/null 2>&1 && exec bash; exec sh'];

export function terminalTab(body, state, here, value) {
  const names = ['containers', 'initContainers', 'ephemeralContainers'].flatMap((key) => value.spec?.[key] ?? []).map((one) => one.name);
  const debuggers = (value.spec?.ephemeralContainers ?? []).map((one) => one.name);
  const choice = /** @type {HTMLSelectElement} */ (h('select', { 'aria-label': 'Container', onchange: () => connect() }, names.map((one) => h('option', {}, one))));
  if (debuggers.length) choice.value = debuggers[debuggers.length - 1];
  const message = h('span.quiet', { role: 'status' });
  const screen = h('div.terminal', { 'aria-label': `Terminal in ${here.name}`, role: 'textbox' });
  let socket = null;
  const encoder = new TextEncoder();
  const send = (channel, text) => {
    if (socket?.readyState !== WebSocket.OPEN) return;
    const data = encoder.encode(text);
    const frame = new Uint8Array(data.length + 1);
    frame[0] = channel;
    frame.set(data, 1);
    socket.send(frame);
  };
  const terminal = new Terminal(screen, (text) => send(STDIN, text));
  const measure = () => {
    const probe = h('span', {}, 'M'.repeat(50));
    screen.append(probe);
    const { width, height } = probe.getBoundingClientRect();
    probe.remove();
    if (!width || !height) return;
    const cols = Math.max(20, Math.floor((screen.clientWidth - 16) / (width / 50)));
    const rows = Math.max(5, Math.floor((screen.clientHeight - 16) / height));
    terminal.resize(cols, rows);
    send(RESIZE, JSON.stringify({ Width: cols, Height: rows }));
  };
  const observer = new ResizeObserver(() => measure());

  const connect = async () => {
    socket?.close();
    terminal.reset();
    fill(message, 'Connecting…');
    const query = { container: choice.value, stdin: 'true', stdout: 'true', tty: 'true' };
    const command = SHELLS.map((word) => `command=${encodeURIComponent(word)}`).join('&');
    const isDebugger = debuggers.includes(choice.value);
    const path = isDebugger ? withQuery(`${here.path}/attach`, query) : `${withQuery(`${here.path}/exec`, query)}&${command}`;
    const token = base64url(encoder.encode(await state.session.token()));
    const opened = new WebSocket(path.replace(/^/, location.origin.replace(/^http/, 'ws')), ['v5.channel.k8s.io', `base64url.bearer.authorization.k8s.io.${token}`]);
    opened.binaryType = 'arraybuffer';
    socket = opened;
    opened.onopen = () => {
      fill(message);
      measure();
      screen.focus();
      if (isDebugger) send(STDIN, '\r');
    };
    opened.onmessage = (event) => {
      const frame = new Uint8Array(event.data);
      if (frame[0] === STDOUT || frame[0] === STDERR) terminal.write(frame.subarray(1));
      else if (frame[0] === ERROR) fill(message, endOf(new TextDecoder().decode(frame.subarray(1))));
    };
    opened.onclose = (event) => {
      if (socket !== opened) return;
      if (!message.textContent || message.textContent === 'Connecting…') fill(message, event.reason || 'The connection ended.');
      if (event.code === 1006 && terminal.text === '') fill(message, 'No connection: the container may have no shell, or you may not run commands in it.');
    };
  };
  fill(body, h('div.buttons', {}, choice, h('button', { onclick: () => connect() }, 'Reconnect'), message), screen);
  observer.observe(screen);
  connect();
  return {
    stop() {
      observer.disconnect();
      socket?.close();
    },
  };
}

/** Returns how a command ended, from the Status that the server sends last. */
function endOf(text) {
  try {
    const status = JSON.parse(text);
    return status.status === 'Success' ? 'The shell has ended.' : status.message;
  } catch {
    return text;
  }
}
