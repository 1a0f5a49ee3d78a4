// Frame of all views: navigation, connection, theme, user.

import type { ComponentChildren } from 'preact';
import { computed } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { ended, expire, session, signOut } from '../session';
import { route, href } from '../router';
import { setTheme, theme, type Theme } from '../theme';
import { isCurrent, POLL_SECONDS } from '../api/watch';
import { CORE, deployments, nodes, replicas } from '../store';
import { age, count } from '../format/text';
import { ahead, now } from '../clock';

const VIEWS: [path: string, title: string][] = [
  ['macs', 'Fleet'], ['deployments', 'Deployments'], ['replicas', 'Replicas'], ['playground', 'Playground'],
  ['requests', 'Requests'], ['plans', 'Plans'], ['claims', 'Claims'], ['events', 'Events'], ['apply', 'Apply YAML'],
];

const THEMES: [Theme, string, string][] = [['system', 'Auto', 'As the system prefers'], ['light', 'Light', 'Light'], ['dark', 'Dark', 'Dark']];

export function Frame({ children }: { children: ComponentChildren }) {
  useEffect(() => {
    if (ended.value) expire();
  }, [ended.value]);
  const current = route.value[0] ?? 'macs';
  // In a narrow window, the navigation scrolls sideways.
  useEffect(() => document.querySelector('.nav [aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'center' }), [current]);
  const user = session.value;
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById('main')?.focus(); }}>Skip to content</a>
      <header class="top">
        <a class="brand" href={href('macs')}><img src="/icon.svg" alt="" width="22" height="22" />rooflet</a>
        <Connection />
        <div class="top-right">
          <div class="themes" role="group" aria-label="Color scheme">
            {THEMES.map(([value, label, hint]) => (
              <button key={value} type="button" title={hint} aria-pressed={theme.value === value} onClick={() => setTheme(value)}>{label}</button>
            ))}
          </div>
          {user && <span class="signed-in" title={user.groups.join(', ')}>{user.user}</span>}
          <button type="button" class="button quiet" onClick={() => void signOut()}>Sign out</button>
        </div>
      </header>
      <nav class="nav" aria-label="Views"><div class="nav-list">
        {VIEWS.map(([path, title]) => (
          <a key={path} href={href(path)} aria-current={current === path ? 'page' : undefined}>
            {title}{COUNTED[path] && <Amount of={COUNTED[path]} />}
          </a>
        ))}
      </div></nav>
      <main id="main" tabIndex={-1}><ClockNotice />{children}</main>
    </div>
  );
}

/** Ages would be wrong by the clock of this computer. */
function ClockNotice() {
  if (ahead.value === 0) return null;
  return (
    <p class="notice" role="status">
      The clock of this computer is {age(Math.round(Math.abs(ahead.value) / 60_000) * 60)} {ahead.value > 0 ? 'ahead of' : 'behind'} the server's clock. The page shows times by the server's clock.
    </p>
  );
}

const COUNTED: Record<string, { readonly value: number }> = {
  macs: computed(() => nodes.objects.value.items.size),
  deployments: computed(() => deployments.objects.value.items.size),
  replicas: computed(() => replicas.objects.value.items.size),
};

function Amount({ of }: { of: { readonly value: number } }) {
  return <span class="nav-count">{count(of.value)}</span>;
}

function Connection() {
  const stale = CORE.filter((collection) => collection.sync.value === 'stale');
  const [first] = stale;
  if (!first) {
    const live = CORE.every((collection) => isCurrent(collection.sync.value) || collection.sync.value === 'forbidden');
    const polled = CORE.some((collection) => collection.sync.value === 'polled');
    const hint = polled ? 'A proxy holds the stream of changes back, so the page lists all objects again and again.' : undefined;
    return <span class={`connection ${live ? 'live' : ''}`} role="status" title={hint}><i class="dot" aria-hidden="true" />{!live ? 'Connecting…' : polled ? `Every ${POLL_SECONDS} s` : 'Live'}</span>;
  }
  const seen = Math.min(...stale.map((collection) => collection.seenAt));
  return (
    <span class="connection lost" role="status">
      <i class="dot" aria-hidden="true" />
      <span>{seen > 0 ? `Disconnected: data is ${age((now.value - seen) / 1000)} old` : 'Disconnected'}</span>
      <button type="button" class="button small" onClick={() => stale.forEach((collection) => collection.start())}>Retry now</button>
    </span>
  );
}
