import assert from 'node:assert/strict';
import { test } from 'node:test';
import { open, session, signIn, signOut } from '../src/session';
import { CORE } from '../src/store';

const answer = { user: 'alice', groups: [], csrfToken: 't', expiresAt: '' };
let reloads = 0;

/** Answers the sign-in. Watches never get an answer. */
function fake(): void {
  const of = (path: string) => (path === '/session' ? Promise.resolve(new Response(JSON.stringify(answer))) : new Promise<Response>(() => undefined));
  Object.assign(globalThis, {
    fetch: of,
    location: { hash: '', reload: () => (reloads += 1) },
    document: { hidden: true },
  });
}

test('the end of a session ends the watches, however often the session began', async () => {
  fake();
  await open();
  await open();
  assert.ok(CORE.every((collection) => collection.used));
  await signOut();
  assert.ok(CORE.every((collection) => !collection.used));
});

test('a link that is opened in a page with a session starts the page again', async () => {
  fake();
  await signIn({ code: 'first' });
  assert.deepEqual([session.value?.user, reloads], ['alice', 0]);
  await signIn({ code: 'second' });
  assert.equal(reloads, 1);
  await signOut();
  assert.equal(session.value, null);
});
