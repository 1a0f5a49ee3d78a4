// Requests to the page's server. The browser sends the session cookie; credentials never reach the page.

import { observeDate } from '../clock';
import { Problem, problemOf } from './problem';

let csrfToken = '';

/** Sets the token that requests with side effects send. */
export function setCsrfToken(token: string): void {
  csrfToken = token;
}

/** Sends a request and returns the successful response. Throws a Problem otherwise. */
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  const method = init.method ?? 'GET';
  if (method !== 'GET') headers.set('X-CSRF-Token', csrfToken);
  const sentAt = Date.now();
  let response: Response;
  try {
    response = await fetch(path, { ...init, headers, credentials: 'same-origin', cache: 'no-store' });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Problem('disconnected', 'the server does not answer');
  }
  observeDate(response.headers.get('date'), sentAt);
  if (!response.ok) {
    throw problemOf(response.status, await response.text().catch(() => ''), response.headers.get('retry-after'));
  }
  return response;
}

/** Sends a request and returns the JSON of the answer. */
export async function json<T>(path: string, init: RequestInit = {}): Promise<T> {
  const response = await request(path, init);
  return (response.status === 204 ? undefined : await response.json()) as T;
}

/** Sends a body and returns the JSON of the answer. */
export function send<T>(method: string, path: string, body: unknown, contentType = 'application/json', signal?: AbortSignal): Promise<T> {
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  return json<T>(path, { method, body: text, headers: { 'Content-Type': contentType }, signal });
}

/** Yields the lines of a streamed response. */
export async function* lines(response: Response): AsyncGenerator<string> {
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  if (!reader) return;
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const parts = (rest + value).split('\n');
      rest = parts.pop() ?? '';
      yield* parts;
    }
    if (rest) yield rest;
  } finally {
    reader.cancel().catch(() => {});
  }
}
