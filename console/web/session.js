// Signing in. The token is in memory only: a reload forgets it.

import { h, fill } from './dom.js';
import { describeError } from './format.js';

const VERIFIER = 'corten-oidc';

/** Seconds before its end at which a token is renewed. */
const EARLY = 120;

export class Session {
  constructor() {
    this.value = '';
    this.user = null;
    /** @type {null | (() => Promise<string>)} */
    this.renewal = null;
    this.renewing = null;
  }

  /** Returns the token, renewed if it is about to expire. */
  async token() {
    if (this.renewal && expiry(this.value) - Date.now() / 1000 < EARLY) {
      this.renewing ??= this.renewal()
        .then((token) => {
          this.value = token;
        })
        .finally(() => {
          this.renewing = null;
        });
      await this.renewing.catch(() => {});
    }
    return this.value;
  }

  /**
   * Takes a token if the server knows its user; an anonymous one is refused.
   * @param {string} token
   */
  async accept(token) {
    const trimmed = token.trim().replace(/^Bearer\s+/i, '');
    if (!/^[\x21-\x7e]+$/.test(trimmed)) throw new Error('This is not a token.');
    const response = await fetch('/apis/authentication.k8s.io/v1/selfsubjectreviews', {
      method: 'POST',
      headers: { Authorization: `Bearer ${trimmed}`, 'Content-Type': 'application/json' },
      body: JSON.stringify({ apiVersion: 'authentication.k8s.io/v1', kind: 'SelfSubjectReview' }),
    });
    if (response.status === 401) throw new Error('The server does not know this token. It may have expired.');
    if (!response.ok) throw new Error(`The server answered ${response.status} when asked who you are.`);
    const user = (await response.json()).status?.userInfo ?? {};
    if (!user.username || user.username === 'system:anonymous') {
      throw new Error('The server takes this token for nobody: you would be anonymous.');
    }
    this.value = trimmed;
    this.user = user;
    this.renewal = renewalOf(user, this);
    return user;
  }

  /** Exchanges the code of a one-time link for a token. */
  async redeem(code) {
    const response = await fetch('session', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ code }) });
    if (!response.ok) throw new Error('This link was used before or is too old. Run `corten console` again.');
    return this.accept((await response.json()).token);
  }

  end() {
    this.value = '';
    this.user = null;
    this.renewal = null;
  }
}

/** Returns how the token of a service account gets a successor: by a TokenRequest for itself. */
function renewalOf(user, session) {
  const match = /^system:serviceaccount:([^:]+):([^:]+)$/.exec(user.username);
  const bound = user.extra?.['authentication.kubernetes.io/credential-id'];
  if (!match || !bound) return session.renewal;
  return async () => {
    const response = await fetch(`/api/v1/namespaces/${match[1]}/serviceaccounts/${match[2]}/token`, {
      method: 'POST',
      headers: { Authorization: `Bearer ${session.value}`, 'Content-Type': 'application/json' },
      body: JSON.stringify({ apiVersion: 'authentication.k8s.io/v1', kind: 'TokenRequest', spec: { expirationSeconds: 3600 } }),
    });
    if (!response.ok) throw new Error('the token cannot be renewed');
    return (await response.json()).status.token;
  };
}

/** Returns when a JWT expires, in seconds; infinity if it does not say. */
function expiry(token) {
  try {
    const payload = JSON.parse(atob(token.split('.')[1].replace(/-/g, '+').replace(/_/g, '/')));
    return payload.exp ?? Infinity;
  } catch {
    return Infinity;
  }
}

/** Signs in by OpenID Connect with PKCE: the first half leaves the page, the second one comes back with a code. */
export class OpenId {
  /** @param {{issuer: string, clientID: string, scopes?: string[]}} settings */
  constructor(settings) {
    this.settings = settings;
  }

  async endpoints() {
    const response = await fetch(`${this.settings.issuer.replace(/\/$/, '')}/.well-known/openid-configuration`);
    if (!response.ok) throw new Error(`The issuer answered ${response.status}.`);
    return response.json();
  }

  get redirect() {
    return location.origin + location.pathname;
  }

  async leave() {
    const endpoints = await this.endpoints();
    const verifier = random();
    const state = random();
    sessionStorage.setItem(VERIFIER, JSON.stringify({ verifier, state }));
    const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier));
    const query = new URLSearchParams({
      response_type: 'code',
      client_id: this.settings.clientID,
      redirect_uri: this.redirect,
      scope: ['openid', 'offline_access', ...(this.settings.scopes ?? [])].join(' '),
      state,
      code_challenge: base64url(new Uint8Array(digest)),
      code_challenge_method: 'S256',
    });
    location.assign(`${endpoints.authorization_endpoint}?${query}`);
  }

  /**
   * Returns whether the address is the issuer's answer.
   * @param {URLSearchParams} query
   */
  isAnswer(query) {
    return query.has('state') && (query.has('code') || query.has('error')) && sessionStorage.getItem(VERIFIER) !== null;
  }

  /**
   * @param {URLSearchParams} query
   * @param {Session} session
   */
  async comeBack(query, session) {
    const kept = JSON.parse(sessionStorage.getItem(VERIFIER) ?? '{}');
    sessionStorage.removeItem(VERIFIER);
    if (query.get('state') !== kept.state) throw new Error('The answer of the issuer belongs to another sign-in.');
    if (query.has('error')) throw new Error(query.get('error_description') || query.get('error') || 'refused');
    const endpoints = await this.endpoints();
    let tokens = await this.exchange(endpoints, {
      grant_type: 'authorization_code',
      code: query.get('code') ?? '',
      redirect_uri: this.redirect,
      code_verifier: kept.verifier,
    });
    await session.accept(tokens.id_token);
    if (!tokens.refresh_token) return;
    session.renewal = async () => {
      tokens = { ...tokens, ...(await this.exchange(endpoints, { grant_type: 'refresh_token', refresh_token: tokens.refresh_token })) };
      return tokens.id_token;
    };
  }

  async exchange(endpoints, form) {
    const response = await fetch(endpoints.token_endpoint, {
      method: 'POST',
      body: new URLSearchParams({ client_id: this.settings.clientID, ...form }),
    });
    if (!response.ok) throw new Error(`The issuer answered ${response.status}.`);
    return response.json();
  }
}

function random() {
  return base64url(crypto.getRandomValues(new Uint8Array(32)));
}

/** @param {Uint8Array} bytes */
export function base64url(bytes) {
  return btoa(String.fromCharCode(...bytes)).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');
}

/**
 * Shows the sign-in page until a user is signed in.
 * @param {HTMLElement} root
 * @param {Session} session
 * @param {{oidc?: {issuer: string, clientID: string}}} settings
 * @param {string} [message] what went wrong before
 */
export function signIn(root, session, settings, message) {
  return new Promise((resolve) => {
    const trouble = h('p.bad', { role: 'alert' }, message ?? '');
    const field = /** @type {HTMLTextAreaElement} */ (h('textarea#token', { rows: 5, autocomplete: 'off', spellcheck: false, required: true }));
    const button = /** @type {HTMLButtonElement} */ (h('button.primary', { type: 'submit' }, 'Sign in'));
    const submit = async (event) => {
      event.preventDefault();
      button.disabled = true;
      fill(trouble);
      try {
        await session.accept(field.value);
        resolve(undefined);
      } catch (error) {
        fill(trouble, describeError(error));
        button.disabled = false;
        field.select();
      }
    };
    const openId = settings.oidc && new OpenId(settings.oidc);
    fill(root, h('main#main.signin', {},
      h('h1', {}, h('img', { src: 'icon.svg', alt: '', width: 40, height: 40 }), 'Corten'),
      trouble,
      h('form', { onsubmit: submit },
        h('label', { for: 'token' }, 'Token of a user or a service account'),
        field,
        button),
      openId && h('button', {
        onclick: () => openId.leave().catch((error) => fill(trouble, describeError(error))),
      }, `Sign in with ${new URL(settings.oidc.issuer).host}`),
      h('p.quiet', {}, 'Or run ', h('code', {}, 'corten console'), ' on a machine that has a kubeconfig: it opens this page signed in.'),
      h('p.quiet', {}, 'A token for yourself: ', h('code', {}, 'kubectl create token NAME'))));
    field.focus();
  });
}
