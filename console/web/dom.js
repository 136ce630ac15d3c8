// Elements. A string is always text, never markup: names, labels and log lines of others cannot become elements.

/**
 * Builds an element: `h('button.primary#save', { onclick }, 'Save')`.
 * @param {string} spec tag name with classes and an id
 * @param {Object<string, any>} [props] properties; `on…` are listeners, `aria-…`, `data-…` and `role` attributes
 * @param {...any} children nodes, strings, arrays of them; null and false are left out
 * @returns {HTMLElement}
 */
export function h(spec, props, ...children) {
  const [tag, ...marks] = spec.split(/(?=[.#])/);
  const element = document.createElement(tag || 'div');
  for (const mark of marks) {
    if (mark[0] === '.') element.classList.add(mark.slice(1));
    else element.id = mark.slice(1);
  }
  for (const [name, value] of Object.entries(props ?? {})) set(element, name, value);
  append(element, children);
  return element;
}

const SVG = 'http://www.w3.org/2000/svg';

/**
 * Builds an element of a drawing.
 * @param {string} tag
 * @param {Object<string, any>} [attributes]
 * @param {...any} children
 * @returns {SVGElement}
 */
export function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  append(element, children);
  return element;
}

function set(element, name, value) {
  if (value === null || value === undefined) return;
  if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
  else if (name === 'class') element.classList.add(...value.split(' ').filter(Boolean));
  else if (/^(aria-|data-|role$|for$|list$|colspan$)/.test(name)) element.setAttribute(name, value);
  else element[name] = value;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child);
  }
}

/**
 * Replaces the children of an element.
 * @param {Element} element
 * @param {...any} children
 */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/**
 * Shows a message at the bottom for some seconds; screen readers read it.
 * @param {string} message
 * @param {'good'|'bad'} [tone]
 */
export function notify(message, tone = 'good') {
  let region = document.querySelector('#notices');
  if (!region) {
    region = h('div#notices', { role: 'status', 'aria-live': 'polite' });
    document.body.append(region);
  }
  const notice = h(`p.notice.${tone}`, {}, message);
  region.append(notice);
  setTimeout(() => notice.remove(), tone === 'bad' ? 12000 : 5000);
}

/**
 * Opens a dialog and resolves with what it is closed with; null if it is cancelled.
 * @param {string} title
 * @param {(close: (value: any) => void) => any} content
 * @returns {Promise<any>}
 */
export function dialog(title, content) {
  return new Promise((resolve) => {
    let result = null;
    const box = /** @type {HTMLDialogElement} */ (h('dialog', { 'aria-label': title }));
    const close = (value) => {
      result = value;
      box.close();
    };
    append(box, [h('h2', {}, title), content(close)]);
    box.addEventListener('close', () => {
      box.remove();
      resolve(result);
    });
    document.body.append(box);
    box.showModal();
  });
}

/**
 * Asks before something that cannot be undone.
 * @param {string} title
 * @param {string} question
 * @param {string} verb the label of the button
 * @returns {Promise<boolean>}
 */
export async function confirm(title, question, verb) {
  const answer = await dialog(title, (close) => [
    h('p', {}, question),
    h('div.buttons', {},
      h('button', { onclick: () => close(false) }, 'Cancel'),
      h('button.danger', { onclick: () => close(true), autofocus: true }, verb)),
  ]);
  return answer === true;
}
