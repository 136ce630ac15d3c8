// The Kubernetes API from a browser: requests with the user's token, tables, watches, discovery, permissions.

/** The error of a request, with the Status that the server answered. */
export class ApiError extends Error {
  constructor(code, status) {
    super(status?.message || `the server answered ${code}`);
    this.code = code;
    this.status = status;
  }
}

const TABLE = 'application/json;as=Table;v=v1;g=meta.k8s.io,application/json';
const DISCOVERY = 'application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json';

/** The rows of a page of a list. */
const PAGE = 500;

export class Api {
  /** @param {() => Promise<string>} token gives the token of the moment */
  constructor(token) {
    this.token = token;
    this.allowed = new Map();
    this.resources = null;
  }

  /**
   * Sends a request and returns the response, or throws an ApiError.
   * @param {string} path
   * @param {{method?: string, accept?: string, type?: string, body?: any, signal?: AbortSignal}} [options]
   */
  async send(path, { method = 'GET', accept = 'application/json', type, body, signal } = {}) {
    const headers = { Accept: accept, Authorization: `Bearer ${await this.token()}` };
    if (body !== undefined) headers['Content-Type'] = type ?? 'application/json';
    const payload = body === undefined || typeof body === 'string' ? body : JSON.stringify(body);
    const response = await fetch(path, { method, headers, body: payload, signal, cache: 'no-store', redirect: 'error' });
    if (response.ok) return response;
    const answer = await response.text();
    let status;
    try {
      status = JSON.parse(answer);
    } catch {
      status = { message: answer.slice(0, 500) };
    }
    if (response.status === 401) window.dispatchEvent(new CustomEvent('unauthorized'));
    throw new ApiError(response.status, status);
  }

  async get(path, options) {
    return (await this.send(path, options)).json();
  }

  async text(path, options) {
    return (await this.send(path, options)).text();
  }

  /** Returns every resource of the server by discovery; custom ones too. */
  async discover() {
    const documents = await Promise.all(['/api', '/apis'].map((path) => this.get(path, { accept: DISCOVERY })));
    const found = [];
    for (const group of documents.flatMap((document) => document.items ?? [])) {
      const seen = new Set();
      for (const version of group.versions ?? []) {
        for (const one of version.resources ?? []) {
          // The first version that serves a resource is the preferred one.
          if (seen.has(one.resource) || !one.verbs?.includes('list')) continue;
          seen.add(one.resource);
          found.push(new Resource(group.metadata?.name ?? '', version.version, one));
        }
      }
    }
    this.resources = found;
    return found;
  }

  /**
   * Returns a resource by plural and group.
   * @param {string} plural
   * @param {string} [group]
   */
  resource(plural, group = '') {
    return this.resources?.find((one) => one.plural === plural && one.group === group);
  }

  /** Returns the resource of an owner reference or an involvedObject. */
  ofKind(apiVersion, kind) {
    const group = (apiVersion ?? '').includes('/') ? apiVersion.split('/')[0] : '';
    return this.resources?.find((one) => one.kind === kind && one.group === group)
      ?? this.resources?.find((one) => one.kind === kind && !apiVersion);
  }

  /**
   * Returns whether the user may do something; the answer is kept for a minute.
   * @param {string} verb
   * @param {{group?: string, plural: string, subresource?: string, namespace?: string, name?: string}} what
   */
  can(verb, { group = '', plural, subresource = '', namespace = '', name = '' }) {
    const key = [verb, group, plural, subresource, namespace, name].join('|');
    const kept = this.allowed.get(key);
    if (kept && Date.now() - kept.at < 60000) return kept.answer;
    const answer = this.get('/apis/authorization.k8s.io/v1/selfsubjectaccessreviews', {
      method: 'POST',
      body: {
        apiVersion: 'authorization.k8s.io/v1',
        kind: 'SelfSubjectAccessReview',
        spec: { resourceAttributes: { verb, group, resource: plural, subresource, namespace, name } },
      },
    }).then((review) => review.status?.allowed === true, () => false);
    this.allowed.set(key, { at: Date.now(), answer });
    return answer;
  }

  /**
   * Lists a resource as a table, page by page, so that the first rows are there at once.
   * @param {string} path
   * @param {(table: any, isFirst: boolean) => void} each
   * @param {AbortSignal} signal
   * @returns {Promise<string>} the resourceVersion to watch from
   */
  async tables(path, each, signal) {
    let next = '';
    let version = '';
    let isFirst = true;
    do {
      const url = withQuery(path, { limit: isFirst ? 100 : PAGE, continue: next });
      const table = await this.get(url, { accept: TABLE, signal });
      next = table.metadata?.continue ?? '';
      version ||= table.metadata?.resourceVersion ?? '';
      each(table, isFirst);
      isFirst = false;
    } while (next);
    return version;
  }

  /**
   * Watches from a version until the signal; returns when the server ends the watch.
   * @param {string} path
   * @param {string} version
   * @param {(event: any) => void} each
   * @param {{signal: AbortSignal, asTable?: boolean}} options
   */
  async watch(path, version, each, { signal, asTable = false }) {
    const url = withQuery(path, { watch: '1', allowWatchBookmarks: 'true', resourceVersion: version });
    const response = await this.send(url, { accept: asTable ? TABLE : 'application/json', signal });
    for await (const line of lines(response.body)) {
      const event = JSON.parse(line);
      if (event.type === 'ERROR') throw new ApiError(event.object?.code ?? 500, event.object);
      each(event);
    }
  }
}

/** A resource of the server: `deployments` of `apps/v1`. */
export class Resource {
  constructor(group, version, found) {
    this.group = group;
    this.version = version;
    this.plural = found.resource;
    this.kind = found.responseKind?.kind ?? found.singularResource;
    this.isNamespaced = found.scope === 'Namespaced';
    this.verbs = found.verbs ?? [];
    this.shortNames = found.shortNames ?? [];
    this.subresources = (found.subresources ?? []).map((one) => one.subresource);
  }

  get apiVersion() {
    return this.group ? `${this.group}/${this.version}` : this.version;
  }

  get root() {
    return this.group ? `/apis/${this.group}/${this.version}` : `/api/${this.version}`;
  }

  /** The identity of the resource in addresses of pages. */
  get id() {
    return this.group ? `${this.plural}.${this.group}` : this.plural;
  }

  /** @param {string} [namespace] */
  path(namespace) {
    const scope = this.isNamespaced && namespace ? `/namespaces/${encodeURIComponent(namespace)}` : '';
    return `${this.root}${scope}/${this.plural}`;
  }

  object(namespace, name, subresource) {
    const below = subresource ? `/${subresource}` : '';
    return `${this.path(namespace)}/${encodeURIComponent(name)}${below}`;
  }
}

/**
 * A list that stays current. Rows are small: cells and the metadata that pages need.
 */
export class LiveTable {
  /**
   * @param {Api} api
   * @param {string} path
   * @param {(live: LiveTable) => void} changed called once for many changes
   */
  constructor(api, path, changed) {
    this.api = api;
    this.path = path;
    this.changed = changed;
    this.rows = new Map();
    this.columns = [];
    this.state = 'loading';
    this.error = null;
    this.abort = new AbortController();
    this.isScheduled = false;
    this.run();
  }

  stop() {
    this.abort.abort();
  }

  async run() {
    const { signal } = this.abort;
    let pause = 500;
    while (!signal.aborted) {
      try {
        const version = await this.list(signal);
        this.state = 'live';
        this.error = null;
        this.schedule();
        pause = 500;
        await this.follow(version, signal);
      } catch (error) {
        if (signal.aborted) return;
        const isOld = error instanceof ApiError && error.code === 410;
        if (!isOld) {
          this.error = error;
          this.state = this.rows.size ? 'stale' : 'failed';
          this.schedule();
          if (error instanceof ApiError && (error.code === 403 || error.code === 401 || error.code === 404)) return;
          await new Promise((resolve) => setTimeout(resolve, pause));
          pause = Math.min(pause * 2, 15000);
        }
      }
    }
  }

  async list(signal) {
    const fresh = new Map();
    // The first load shows rows as they come; a later one replaces them at its end.
    const target = this.rows.size ? fresh : this.rows;
    const version = await this.api.tables(this.path, (table, isFirst) => {
      if (isFirst && table.columnDefinitions) this.columns = table.columnDefinitions;
      for (const row of table.rows ?? []) keep(target, row);
      this.schedule();
    }, signal);
    if (target === fresh) this.rows = fresh;
    return version;
  }

  async follow(version, signal) {
    let last = version;
    for (;;) {
      await this.api.watch(this.path, last, (event) => {
        const table = event.object ?? {};
        const rows = table.rows ?? [];
        last = rows[0]?.object?.metadata?.resourceVersion ?? table.metadata?.resourceVersion ?? last;
        if (event.type === 'BOOKMARK') return;
        for (const row of rows) {
          if (event.type === 'DELETED') this.rows.delete(row.object?.metadata?.uid);
          else keep(this.rows, row);
        }
        this.schedule();
      }, { signal, asTable: true });
      if (signal.aborted) return;
    }
  }

  /** Tells the page once a frame at most, and less often the more rows there are. */
  schedule() {
    if (this.isScheduled) return;
    this.isScheduled = true;
    const wait = this.rows.size > 5000 ? 400 : 50;
    setTimeout(() => {
      this.isScheduled = false;
      if (!this.abort.signal.aborted) this.changed(this);
    }, wait);
  }
}

/** Puts a row of an answer into rows. A row that changes stays the same object: tables know its place by it. */
function keep(rows, row) {
  const meta = row.object?.metadata;
  if (!meta?.uid) return;
  const kept = {
    uid: meta.uid,
    name: meta.name,
    namespace: meta.namespace ?? '',
    labels: meta.labels ?? null,
    created: meta.creationTimestamp,
    isDeleting: Boolean(meta.deletionTimestamp),
    owner: meta.ownerReferences?.[0]?.uid ?? '',
    cells: row.cells ?? [],
    text: '',
  };
  const known = rows.get(meta.uid);
  if (known) Object.assign(known, kept);
  else rows.set(meta.uid, kept);
}

/** A list of whole objects that stays current, for pages which need more than a table. */
export class LiveObjects {
  /**
   * @param {Api} api
   * @param {string} path
   * @param {() => void} changed
   */
  constructor(api, path, changed) {
    this.api = api;
    this.path = path;
    this.changed = changed;
    this.items = new Map();
    this.error = null;
    this.isLoaded = false;
    this.abort = new AbortController();
    this.timer = 0;
    this.run();
  }

  stop() {
    this.abort.abort();
    clearTimeout(this.timer);
  }

  get all() {
    return [...this.items.values()];
  }

  async run() {
    const { signal } = this.abort;
    let pause = 500;
    while (!signal.aborted) {
      try {
        const list = await this.api.get(this.path, { signal });
        this.items = new Map((list.items ?? []).map((item) => [item.metadata.uid ?? item.metadata.name, slim(item)]));
        this.isLoaded = true;
        this.error = null;
        this.schedule();
        let last = list.metadata?.resourceVersion ?? '';
        pause = 500;
        while (!signal.aborted) {
          await this.api.watch(this.path, last, (event) => {
            last = event.object?.metadata?.resourceVersion ?? last;
            if (event.type === 'BOOKMARK') return;
            if (event.type === 'DELETED') this.items.delete(event.object.metadata.uid);
            else this.items.set(event.object.metadata.uid, slim(event.object));
            this.schedule();
          }, { signal });
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ApiError && error.code === 410) continue;
        this.error = error;
        this.isLoaded = true;
        this.schedule();
        if (error instanceof ApiError && (error.code === 403 || error.code === 401 || error.code === 404)) return;
        await new Promise((resolve) => setTimeout(resolve, pause));
        pause = Math.min(pause * 2, 15000);
      }
    }
  }

  schedule() {
    if (this.timer) return;
    this.timer = window.setTimeout(() => {
      this.timer = 0;
      if (!this.abort.signal.aborted) this.changed();
    }, 50);
  }
}

function slim(object) {
  if (object.metadata) delete object.metadata.managedFields;
  return object;
}

/**
 * Adds a query to a path.
 * @param {string} path
 * @param {Object<string, any>} query empty values are left out
 */
export function withQuery(path, query) {
  const parts = Object.entries(query).filter(([, value]) => value !== '' && value !== undefined && value !== null);
  if (!parts.length) return path;
  const added = parts.map(([name, value]) => `${name}=${encodeURIComponent(String(value))}`).join('&');
  return path + (path.includes('?') ? '&' : '?') + added;
}

/** The longest line that is read; a longer one is cut into several. */
const LONGEST_LINE = 8 << 20;

/**
 * Returns the lines of a stream.
 * @param {ReadableStream<Uint8Array>} stream
 */
export async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      rest += value;
      const parts = rest.split('\n');
      rest = parts.pop() ?? '';
      for (const part of parts) if (part) yield part;
      if (rest.length > LONGEST_LINE) {
        yield rest;
        rest = '';
      }
    }
    if (rest) yield rest;
  } finally {
    reader.cancel().catch(() => {});
  }
}
