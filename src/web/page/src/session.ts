// The signed-in user.

import { computed, signal } from '@preact/signals';
import { json, request, send, setCsrfToken } from './api/http';
import { Problem } from './api/problem';
import { API } from './api/resources';
import { clearAll, CORE } from './store';

export interface Session {
  user: string;
  groups: string[];
  csrfToken: string;
  expiresAt: string;
  serverVersion?: string;
  gateway?: boolean;
  /** True if the server queries a Prometheus. */
  prometheus?: boolean;
}

/** `undefined`: not known yet. `null`: nobody is signed in. */
export const session = signal<Session | null | undefined>(undefined);
/** Reason for the sign-in page, such as an expired code. */
export const signInProblem = signal<string | undefined>(undefined);
export const unreachable = signal(false);

let release: (() => void)[] = [];

function begin(started: Session): void {
  release.forEach((stop) => stop());
  setCsrfToken(started.csrfToken);
  signInProblem.value = undefined;
  unreachable.value = false;
  session.value = started;
  release = CORE.map((collection) => collection.use());
}

function end(problem?: string): void {
  release.forEach((stop) => stop());
  release = [];
  clearAll();
  permissions.clear();
  setCsrfToken('');
  signInProblem.value = problem;
  session.value = null;
}

/** A link of `rooflet ui` may be opened in a tab that shows the page already. */
export function watchCodes(): void {
  window.addEventListener('hashchange', () => {
    if (location.hash.startsWith('#code=')) void open();
  });
}

/** Uses the code in the address, or the existing session. */
export async function open(): Promise<void> {
  const code = /^#code=([^&]+)/.exec(location.hash)?.[1];
  if (code !== undefined) {
    history.replaceState(null, '', '/');
    return signIn({ code: decodeURIComponent(code) });
  }
  try {
    begin(await json<Session>('/session'));
  } catch (error) {
    if (error instanceof Problem && error.kind === 'disconnected') {
      unreachable.value = true;
      setTimeout(() => void open(), 2000);
    } else {
      end();
    }
  }
}

export async function signIn(credential: { token: string } | { code: string } | { certificate: string }): Promise<void> {
  try {
    const started = await send<Session>('POST', '/session', credential);
    // A link was opened in a page with another session. Its views keep objects and permissions of that session,
    // so the page starts again with the new one.
    if (session.peek()) location.reload();
    else begin(started);
  } catch (error) {
    end(error instanceof Error ? error.message : String(error));
  }
}

export async function signOut(): Promise<void> {
  await request('/session', { method: 'DELETE' }).catch(() => undefined);
  end();
}

/** Shows the sign-in page as soon as a watch reports that the session has ended. */
export const ended = computed(() => CORE.some((collection) => collection.sync.value === 'signed-out'));

export function expire(): void {
  end('The session has ended. Sign in again.');
}

const permissions = new Map<string, Promise<boolean>>();

/** Returns whether the user may do this, as the API server's access review answers. */
export function allowed(verb: string, resource: string, namespace?: string, subresource?: string): Promise<boolean> {
  const key = [verb, resource, subresource, namespace].join(' ');
  let answer = permissions.get(key);
  if (!answer) {
    const attributes = { verb, resource, subresource, namespace, group: 'rooflet.dev' };
    answer = send<{ status?: { allowed?: boolean } }>(
      'POST',
      `${API}/apis/authorization.k8s.io/v1/selfsubjectaccessreviews`,
      { apiVersion: 'authorization.k8s.io/v1', kind: 'SelfSubjectAccessReview', spec: { resourceAttributes: attributes } },
    ).then((review) => review.status?.allowed === true);
    // A failed review is repeated. Until then, the API server decides about the action itself.
    answer = answer.catch(() => {
      permissions.delete(key);
      return true;
    });
    permissions.set(key, answer);
  }
  return answer;
}
