// Frame of all views: navigation, connection, theme, user.

import type { ComponentChildren } from 'preact';
import { computed } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { ended, expire, session, signOut } from '../session';
import { route, href } from '../router';
import { setTheme, theme, type Theme } from '../theme';
import { CORE, deployments, nodes, replicas } from '../store';
import { age, count } from '../format/text';
import { now } from '../clock';

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
      <main id="main" tabIndex={-1}>{children}</main>
    </div>
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
    const live = CORE.every((collection) => collection.sync.value === 'live' || collection.sync.value === 'forbidden');
    return <span class={`connection ${live ? 'live' : ''}`} role="status"><i class="dot" aria-hidden="true" />{live ? 'Live' : 'Connecting…'}</span>;
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
