// Sign-in with a token. `rooflet ui` opens the page with a one-time code instead.

import { useState } from 'preact/hooks';
import { signIn, signInProblem, unreachable } from '../session';
import { Empty } from '../ui/State';
import { useTitle } from '../ui/use';

export function SignIn() {
  useTitle('Sign in');
  const [token, setToken] = useState('');
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    await signIn({ token: token.trim() });
    setBusy(false);
    setToken('');
  };
  const choose = async (input: HTMLInputElement) => {
    setBusy(true);
    await signIn({ certificate: (await Promise.all([...input.files!].map((file) => file.text()))).join('\n') });
    setBusy(false);
    // The same files can be chosen again.
    input.value = '';
  };
  return (
    <main class="sign-in">
      <form class="sign-in-card" onSubmit={submit}>
        <img src="/icon.svg" alt="" width="40" height="40" />
        <h1>Sign in to the fleet</h1>
        {signInProblem.value && <p class="problem" role="alert">{signInProblem.value}</p>}
        <p class="muted">Run <code>rooflet ui</code> on the machine of the control plane. It prints a link that signs you in.</p>
        <label class="field">
          <span>Or use a bearer token of the API server</span>
          <input type="password" name="token" autocomplete="off" spellcheck={false} value={token} required onInput={(event) => setToken(event.currentTarget.value)} />
        </label>
        <button type="submit" class="button primary" disabled={busy}>{busy ? 'Signing in…' : 'Sign in'}</button>
        <label class="field">
          <span>Or choose the PEM files of a client certificate and its key</span>
          <input type="file" multiple accept=".pem,.crt,.cer,.key" disabled={busy} onChange={(event) => void choose(event.currentTarget)} />
        </label>
        <p class="note muted">The credential stays in the server's memory until you sign out. The browser keeps only a session cookie.</p>
      </form>
    </main>
  );
}

/** Equals the frame in index.html until the server does not answer. */
export function Waiting() {
  return (
    <div class="frame">
      <header class="top">
        <span class="brand"><img src="/icon.svg" alt="" width="22" height="22" />rooflet</span>
        <span class={`connection ${unreachable.value ? 'lost' : ''}`} role="status"><i class="dot" aria-hidden="true" />{unreachable.value ? 'Disconnected' : 'Connecting…'}</span>
      </header>
      <div class="nav" />
      {unreachable.value && <main><Empty title="The server does not answer">The page tries again every two seconds. Check that <code>rooflet server</code> runs.</Empty></main>}
    </div>
  );
}
