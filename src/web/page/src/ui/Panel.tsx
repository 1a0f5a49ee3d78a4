// Sections of a view.

import type { ComponentChildren } from 'preact';

export function Panel({ title, aside, children }: { title: string; aside?: ComponentChildren; children: ComponentChildren }) {
  const id = `panel-${title.toLowerCase().replace(/\W+/g, '-')}`;
  return (
    <section class="panel" aria-labelledby={id}>
      <header class="panel-head"><h2 id={id}>{title}</h2>{aside && <div class="panel-aside">{aside}</div>}</header>
      {children}
    </section>
  );
}

/** Two columns, one above the other in a narrow window. */
export function Columns({ main, side }: { main: ComponentChildren; side: ComponentChildren }) {
  return <div class="columns"><div class="column">{main}</div><div class="column">{side}</div></div>;
}

export function Figure({ label, value, unit, note }: { label: string; value: ComponentChildren; unit?: string; note?: ComponentChildren }) {
  return (
    <div class="figure">
      <dt>{label}</dt>
      <dd><span class="figure-value">{value}</span>{unit && <span class="figure-unit"> {unit}</span>}{note && <div class="figure-note">{note}</div>}</dd>
    </div>
  );
}

export function Facts({ of }: { of: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {of.map(([label, value]) => <div key={label}><dt>{label}</dt><dd>{value}</dd></div>)}
    </dl>
  );
}

/** Heading of a view about one object. */
export function ObjectHead({ back, backTo, title, state, children, actions }: {
  back: string; backTo: string; title: string; state: ComponentChildren; children?: ComponentChildren; actions?: ComponentChildren;
}) {
  return (
    <header class="object-head">
      <a class="back" href={backTo}>← {back}</a>
      <div class="object-title"><h1>{title}</h1>{state}</div>
      {children && <p class="object-facts muted">{children}</p>}
      {actions && <div class="actions">{actions}</div>}
    </header>
  );
}
