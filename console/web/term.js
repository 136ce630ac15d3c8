// A terminal: what programs in a container print, on a grid of cells. It knows the sequences that shells, editors and
// `top` use; others are read and left out. Nothing that is printed can become markup or run.

const SCROLLBACK = 2000;

/** The 16 colours have classes; the 256 and true colours are set by style. */
const BLANK = { text: ' ', style: '' };

export class Terminal {
  /**
   * @param {HTMLElement} element
   * @param {(text: string) => void} send
   */
  constructor(element, send) {
    this.element = element;
    this.send = send;
    this.cols = 80;
    this.rows = 24;
    this.reset();
    this.decoder = new TextDecoder();
    this.isScheduled = false;
    element.tabIndex = 0;
    element.addEventListener('keydown', (event) => this.key(event));
    element.addEventListener('paste', (event) => {
      const text = event.clipboardData?.getData('text') ?? '';
      send(this.isBracketed ? `\x1b[200~${text}\x1b[201~` : text.replace(/\n/g, '\r'));
      event.preventDefault();
    });
  }

  reset() {
    this.history = [];
    this.main = this.emptyScreen();
    this.screen = this.main;
    this.isAlternate = false;
    this.x = 0;
    this.y = 0;
    this.saved = { x: 0, y: 0, style: '' };
    this.top = 0;
    this.bottom = this.rows - 1;
    this.style = '';
    this.attributes = { bold: false, dim: false, underline: false, inverse: false, fg: '', bg: '' };
    this.isCursorShown = true;
    this.isApplication = false;
    this.isBracketed = false;
    this.pending = '';
    this.wrapNext = false;
  }

  emptyScreen() {
    return Array.from({ length: this.rows }, () => this.emptyLine());
  }

  emptyLine() {
    return Array.from({ length: this.cols }, () => BLANK);
  }

  resize(cols, rows) {
    if (cols === this.cols && rows === this.rows) return;
    const fit = (line) => (line.length >= cols ? line.slice(0, cols) : [...line, ...Array.from({ length: cols - line.length }, () => BLANK)]);
    const fitAll = (screen) => {
      let lines = screen.map(fit);
      while (lines.length > rows) {
        // Lines above the cursor go to the history first.
        if (this.y > 0 && screen === this.screen) {
          const gone = lines.shift();
          if (!this.isAlternate) this.history.push(gone);
          this.y -= 1;
        } else lines = lines.slice(0, rows);
      }
      return lines;
    };
    this.cols = cols;
    const isMain = this.screen === this.main;
    const screen = fitAll(this.screen);
    this.rows = rows;
    while (screen.length < rows) screen.push(this.emptyLine());
    this.screen = screen;
    if (isMain) this.main = screen;
    this.top = 0;
    this.bottom = rows - 1;
    this.x = Math.min(this.x, cols - 1);
    this.y = Math.min(this.y, rows - 1);
    this.schedule();
  }

  /** @param {Uint8Array|string} data */
  write(data) {
    const text = this.pending + (typeof data === 'string' ? data : this.decoder.decode(data, { stream: true }));
    this.pending = '';
    let at = 0;
    while (at < text.length) {
      const code = text.charCodeAt(at);
      if (code === 0x1b) {
        const length = this.escape(text, at);
        if (length === 0) {
          // The rest of the sequence comes with the next bytes; a sequence without end is left out.
          if (text.length - at < 4096) this.pending = text.slice(at);
          break;
        }
        at += length;
      } else if (code < 0x20 || code === 0x7f) {
        this.control(code);
        at += 1;
      } else {
        const one = String.fromCodePoint(/** @type {number} */ (text.codePointAt(at)));
        this.put(one);
        at += one.length;
      }
    }
    this.schedule();
  }

  control(code) {
    this.wrapNext = false;
    if (code === 8) this.x = Math.max(0, this.x - 1);
    else if (code === 9) this.x = Math.min(this.cols - 1, (Math.floor(this.x / 8) + 1) * 8);
    else if (code === 10 || code === 11 || code === 12) this.lineFeed();
    else if (code === 13) this.x = 0;
  }

  lineFeed() {
    if (this.y === this.bottom) this.scrollUp(1);
    else this.y = Math.min(this.rows - 1, this.y + 1);
  }

  scrollUp(count) {
    for (let n = 0; n < Math.min(count, this.rows); n += 1) {
      const [gone] = this.screen.splice(this.top, 1);
      if (this.top === 0 && !this.isAlternate) this.history.push(gone);
      this.screen.splice(this.bottom, 0, this.emptyLine());
    }
    if (this.history.length > SCROLLBACK) this.history.splice(0, this.history.length - SCROLLBACK);
  }

  scrollDown(count) {
    for (let n = 0; n < Math.min(count, this.rows); n += 1) {
      this.screen.splice(this.bottom, 1);
      this.screen.splice(this.top, 0, this.emptyLine());
    }
  }

  put(text) {
    if (this.wrapNext) {
      this.x = 0;
      this.lineFeed();
      this.wrapNext = false;
    }
    this.screen[this.y][this.x] = { text, style: this.style };
    if (this.x === this.cols - 1) this.wrapNext = true;
    else this.x += 1;
  }

  /** Reads a sequence; returns its length, 0 if it is not complete. */
  escape(text, at) {
    const kind = text[at + 1];
    if (kind === undefined) return 0;
    if (kind === '[') {
      const match = /^\x1b\[([<-?]?)([0-9;:]*)([ -/]*)([@-~])/.exec(text.slice(at, at + 128));
      if (!match) return text.length - at < 128 ? 0 : 2;
      this.wrapNext = false;
      this.sequence(match[1], match[2].split(/[;:]/).map(Number), match[4]);
      return match[0].length;
    }
    if (kind === ']' || kind === 'P' || kind === '_' || kind === '^') {
      // Titles, links and the like: read up to their end and left out.
      const end = /\x07|\x1b\\/.exec(text.slice(at + 2));
      return end ? 2 + end.index + end[0].length : 0;
    }
    if (kind === '(' || kind === ')' || kind === '#') return text[at + 2] === undefined ? 0 : 3;
    this.simple(kind);
    return 2;
  }

  simple(kind) {
    if (kind === '7') this.saved = { x: this.x, y: this.y, style: this.style };
    else if (kind === '8') Object.assign(this, this.saved);
    else if (kind === 'D') this.lineFeed();
    else if (kind === 'M') {
      if (this.y === this.top) this.scrollDown(1);
      else this.y = Math.max(0, this.y - 1);
    } else if (kind === 'E') {
      this.x = 0;
      this.lineFeed();
    } else if (kind === 'c') this.reset();
  }

  sequence(mark, numbers, final) {
    const n = Math.max(1, numbers[0] || 1);
    const clampX = (x) => Math.min(this.cols - 1, Math.max(0, x));
    const clampY = (y) => Math.min(this.rows - 1, Math.max(0, y));
    if (mark === '?') {
      if (final === 'h' || final === 'l') for (const mode of numbers) this.mode(mode, final === 'h');
      return;
    }
    if (mark) return;
    switch (final) {
      case 'A': this.y = clampY(this.y - n); break;
      case 'B': case 'e': this.y = clampY(this.y + n); break;
      case 'C': case 'a': this.x = clampX(this.x + n); break;
      case 'D': this.x = clampX(this.x - n); break;
      case 'E': this.y = clampY(this.y + n); this.x = 0; break;
      case 'F': this.y = clampY(this.y - n); this.x = 0; break;
      case 'G': case '`': this.x = clampX(n - 1); break;
      case 'd': this.y = clampY(n - 1); break;
      case 'H': case 'f': this.y = clampY(n - 1); this.x = clampX((numbers[1] || 1) - 1); break;
      case 'J': this.eraseScreen(numbers[0] || 0); break;
      case 'K': this.eraseLine(numbers[0] || 0); break;
      case 'L': this.inLines(() => this.scrollDown(n)); break;
      case 'M': this.inLines(() => this.scrollUp(n)); break;
      case 'P': this.shift(n); break;
      case '@': this.insert(n); break;
      case 'X': this.erase(this.y, this.x, this.x + n); break;
      case 'S': this.scrollUp(n); break;
      case 'T': this.scrollDown(n); break;
      case 'r': this.region(numbers); break;
      case 'm': this.graphics(numbers); break;
      case 's': this.saved = { x: this.x, y: this.y, style: this.style }; break;
      case 'u': Object.assign(this, this.saved); break;
      case 'n': if (numbers[0] === 6) this.send(`\x1b[${this.y + 1};${this.x + 1}R`); break;
      case 'c': this.send('\x1b[?1;2c'); break;
      default:
    }
  }

  /** Scrolls only the lines from the cursor on. */
  inLines(work) {
    if (this.y < this.top || this.y > this.bottom) return;
    const { top, isAlternate } = this;
    this.top = this.y;
    this.isAlternate = true;
    work();
    this.top = top;
    this.isAlternate = isAlternate;
  }

  region(numbers) {
    const top = Math.max(1, numbers[0] || 1) - 1;
    const bottom = Math.min(this.rows, numbers[1] || this.rows) - 1;
    if (top >= bottom) return;
    this.top = top;
    this.bottom = bottom;
    this.x = 0;
    this.y = 0;
  }

  mode(mode, isSet) {
    if (mode === 25) this.isCursorShown = isSet;
    else if (mode === 1) this.isApplication = isSet;
    else if (mode === 2004) this.isBracketed = isSet;
    else if (mode === 1049 || mode === 47 || mode === 1047) this.alternate(isSet);
  }

  /** Editors draw on a screen of their own. */
  alternate(isSet) {
    if (isSet === this.isAlternate) return;
    this.isAlternate = isSet;
    if (isSet) {
      this.saved = { x: this.x, y: this.y, style: this.style };
      this.main = this.screen;
      this.screen = this.emptyScreen();
    } else {
      this.screen = this.main.slice(0, this.rows);
      while (this.screen.length < this.rows) this.screen.push(this.emptyLine());
      Object.assign(this, this.saved);
    }
    this.top = 0;
    this.bottom = this.rows - 1;
  }

  erase(y, from, to) {
    for (let x = from; x < Math.min(to, this.cols); x += 1) this.screen[y][x] = { text: ' ', style: this.attributes.bg ? this.style : '' };
  }

  eraseLine(kind) {
    this.erase(this.y, kind === 0 ? this.x : 0, kind === 1 ? this.x + 1 : this.cols);
  }

  eraseScreen(kind) {
    if (kind === 3) this.history = [];
    const from = kind === 0 ? this.y + 1 : 0;
    const to = kind === 1 ? this.y : this.rows;
    for (let y = from; y < to; y += 1) this.erase(y, 0, this.cols);
    if (kind === 0 || kind === 1) this.eraseLine(kind);
  }

  shift(count) {
    const line = this.screen[this.y];
    line.splice(this.x, count);
    while (line.length < this.cols) line.push(BLANK);
  }

  insert(count) {
    const line = this.screen[this.y];
    line.splice(this.x, 0, ...Array.from({ length: Math.min(count, this.cols) }, () => BLANK));
    line.length = this.cols;
  }

  graphics(numbers) {
    const a = this.attributes;
    for (let at = 0; at < numbers.length; at += 1) {
      const n = numbers[at];
      if (n === 0) Object.assign(a, { bold: false, dim: false, underline: false, inverse: false, fg: '', bg: '' });
      else if (n === 1) a.bold = true;
      else if (n === 2) a.dim = true;
      else if (n === 4) a.underline = true;
      else if (n === 7) a.inverse = true;
      else if (n === 22) Object.assign(a, { bold: false, dim: false });
      else if (n === 24) a.underline = false;
      else if (n === 27) a.inverse = false;
      else if (n >= 30 && n <= 37) a.fg = `f${n - 30}`;
      else if (n >= 90 && n <= 97) a.fg = `f${n - 82}`;
      else if (n === 39) a.fg = '';
      else if (n >= 40 && n <= 47) a.bg = `b${n - 40}`;
      else if (n >= 100 && n <= 107) a.bg = `b${n - 92}`;
      else if (n === 49) a.bg = '';
      else if (n === 38 || n === 48) {
        const isIndexed = numbers[at + 1] === 5;
        const color = isIndexed ? nearest(numbers[at + 2] ?? 0) : nearestOf(numbers.slice(at + 2, at + 5));
        a[n === 38 ? 'fg' : 'bg'] = (n === 38 ? 'f' : 'b') + color;
        at += isIndexed ? 2 : 4;
      }
    }
    const flags = ['bold', 'dim', 'underline', 'inverse'].filter((name) => a[name]);
    this.style = [...flags, a.fg, a.bg].filter(Boolean).join(' ');
  }

  schedule() {
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      this.draw();
    });
  }

  draw() {
    const isAtEnd = this.element.scrollTop + this.element.clientHeight > this.element.scrollHeight - 30;
    const past = this.isAlternate ? [] : this.history;
    const lines = [...past, ...this.screen];
    const cursor = past.length + this.y;
    this.element.replaceChildren(...lines.map((line, at) => this.lineElement(line, at === cursor && this.isCursorShown)));
    if (isAtEnd) this.element.scrollTop = this.element.scrollHeight;
  }

  lineElement(line, hasCursor) {
    const element = document.createElement('div');
    let run = '';
    let style = '';
    const flush = () => {
      if (!run) return;
      const span = document.createElement('span');
      if (style) span.className = style;
      span.textContent = run;
      element.append(span);
      run = '';
    };
    line.forEach((cell, x) => {
      const wanted = hasCursor && x === this.x ? `${cell.style} cursor`.trim() : cell.style;
      if (wanted !== style) {
        flush();
        style = wanted;
      }
      run += cell.text;
    });
    flush();
    return element;
  }

  /** The text of the screen, for tests and for copying. */
  get text() {
    return this.screen.map((line) => line.map((cell) => cell.text).join('').trimEnd()).join('\n').trimEnd();
  }

  key(event) {
    const sent = this.sequenceOf(event);
    if (sent === null) return;
    this.send(sent);
    event.preventDefault();
    event.stopPropagation();
  }

  sequenceOf(event) {
    if (event.metaKey || (event.ctrlKey && event.shiftKey)) return null;
    const arrow = { ArrowUp: 'A', ArrowDown: 'B', ArrowRight: 'C', ArrowLeft: 'D', Home: 'H', End: 'F' }[event.key];
    if (arrow) return `\x1b${this.isApplication ? 'O' : '['}${arrow}`;
    const named = {
      Enter: '\r', Backspace: '\x7f', Tab: '\t', Escape: '\x1b', Delete: '\x1b[3~', Insert: '\x1b[2~', PageUp: '\x1b[5~', PageDown: '\x1b[6~',
      F1: '\x1bOP', F2: '\x1bOQ', F3: '\x1bOR', F4: '\x1bOS', F5: '\x1b[15~', F6: '\x1b[17~', F7: '\x1b[18~', F8: '\x1b[19~', F9: '\x1b[20~', F10: '\x1b[21~',
    }[event.key];
    if (named) return named;
    if (event.key.length !== 1) return null;
    if (event.ctrlKey) {
      const code = event.key.toUpperCase().charCodeAt(0);
      if (event.key === 'v') return null;
      return code >= 0x40 && code < 0x60 ? String.fromCharCode(code - 0x40) : event.key === ' ' ? '\0' : null;
    }
    return event.altKey ? `\x1b${event.key}` : event.key;
  }
}

/** Returns the nearest of the 16 colours of one of the 256. */
function nearest(index) {
  if (index < 16) return index;
  if (index >= 232) return index < 238 ? 0 : index < 244 ? 8 : index < 250 ? 7 : 15;
  const rest = index - 16;
  return nearestOf([Math.floor(rest / 36), Math.floor(rest / 6) % 6, rest % 6].map((one) => one * 51));
}

function nearestOf([red = 0, green = 0, blue = 0]) {
  const most = Math.max(red, green, blue);
  if (most < 40) return 0;
  const bits = (red > most / 2 ? 1 : 0) + (green > most / 2 ? 2 : 0) + (blue > most / 2 ? 4 : 0);
  return most > 170 ? bits + 8 : bits;
}
