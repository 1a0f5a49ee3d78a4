// Objects as YAML, and the identity of objects in a YAML text. The API server parses the YAML itself.

/** Returns the value as block-style YAML. */
export function toYaml(value: unknown, indent = ''): string {
  if (Array.isArray(value)) {
    if (value.length === 0) return '[]';
    return value.map((item) => `${indent}- ${nested(item, `${indent}  `).trimStart()}`).join('\n');
  }
  if (value !== null && typeof value === 'object') {
    const entries = Object.entries(value).filter(([, item]) => item !== undefined);
    if (entries.length === 0) return '{}';
    return entries
      .map(([key, item]) => {
        const block = item !== null && typeof item === 'object' && Object.keys(item).length > 0;
        const text = nested(item, Array.isArray(item) ? indent : `${indent}  `);
        return `${indent}${scalar(key)}:${block ? '\n' : ' '}${block ? text : text.trimStart()}`;
      })
      .join('\n');
  }
  return scalar(value);
}

function nested(value: unknown, indent: string): string {
  return value !== null && typeof value === 'object' ? toYaml(value, indent) : scalar(value);
}

function scalar(value: unknown): string {
  if (typeof value !== 'string') return String(value);
  const plain = /^[A-Za-z0-9_/.][A-Za-z0-9_./@%()+ -]*(:\/\/[A-Za-z0-9_./@-]+)?$/.test(value) && !/\s$/.test(value);
  const typed = /^(true|false|null|yes|no|on|off|~|[-+.0-9][\d.eE+_-]*)$/i.test(value);
  return plain && !typed ? value : JSON.stringify(value);
}

/** Identity of an object in a YAML document. */
export interface Identity {
  apiVersion: string;
  kind: string;
  name: string;
  namespace?: string;
}

/** Document of a YAML text. `problem` is set if the document has no readable identity. */
export interface Document {
  text: string;
  identity?: Identity;
  problem?: string;
}

/** Splits a YAML text at `---` and reads the identity of each document. */
export function documents(text: string): Document[] {
  return text
    .split(/^---\s*(?:#.*)?$/m)
    .filter((part) => /^\s*[^\s#]/m.test(part))
    .map((part, index) => {
      const apiVersion = field(part, 'apiVersion');
      const kind = field(part, 'kind');
      const metadata = metadataOf(part);
      const name = metadata.name;
      const missing = [!apiVersion && 'apiVersion', !kind && 'kind', !name && 'metadata.name'].filter(Boolean);
      if (!apiVersion || !kind || !name) {
        return { text: part, problem: `document ${index + 1}: ${missing.join(', ')} is missing` };
      }
      return { text: part, identity: { apiVersion, kind, name, namespace: metadata.namespace } };
    });
}

function unquoted(text: string): string {
  const value = text.replace(/\s+#.*$/, '').trim();
  return /^(".*"|'.*')$/.test(value) ? value.slice(1, -1) : value;
}

function field(text: string, name: string): string | undefined {
  const found = new RegExp(`^["']?${name}["']?:[ \\t]*(\\S.*)$`, 'm').exec(text);
  return found?.[1] === undefined ? undefined : unquoted(found[1]) || undefined;
}

function metadataOf(text: string): { name?: string; namespace?: string } {
  const flow = /^metadata:[ \t]*\{(.*)\}[ \t]*(?:#.*)?$/m.exec(text);
  const get = (name: string, source: string, pattern: (name: string) => RegExp) => {
    const found = pattern(name).exec(source)?.[1];
    return found === undefined ? undefined : unquoted(found) || undefined;
  };
  if (flow?.[1] !== undefined) {
    const pattern = (name: string) => new RegExp(`(?:^|[,{\\s])["']?${name}["']?:[ \\t]*([^,}]+)`);
    return { name: get('name', flow[1], pattern), namespace: get('namespace', flow[1], pattern) };
  }
  const block = /^metadata:[ \t]*(?:#.*)?\n((?:[ \t]+.*\n?|\s*\n)*)/m.exec(text)?.[1] ?? '';
  const first = /^([ \t]+)\S/m.exec(block)?.[1] ?? '  ';
  const pattern = (name: string) => new RegExp(`^${first}["']?${name}["']?:[ \\t]*(\\S.*)$`, 'm');
  return { name: get('name', block, pattern), namespace: get('namespace', block, pattern) };
}
