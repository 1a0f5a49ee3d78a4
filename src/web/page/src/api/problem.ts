// Failed requests, in one form for the API server, the gateway and the page's own server.

export type ProblemKind = 'disconnected' | 'signed-out' | 'forbidden' | 'not-found' | 'gone' | 'conflict' | 'busy' | 'rejected';

export class Problem extends Error {
  constructor(readonly kind: ProblemKind, message: string, readonly status = 0, readonly retryAfterSeconds?: number) {
    super(message);
  }
}

/** Returns the problem of a response whose status is not 2xx. */
export function problemOf(status: number, body: string, retryAfter?: string | null): Problem {
  const { reason, message } = detailsOf(body);
  const seconds = retryAfter ? Number(retryAfter) : undefined;
  const text = message ?? `the server answered with status ${status}`;
  return new Problem(kindOf(status, reason), text, status, Number.isFinite(seconds) ? seconds : undefined);
}

function kindOf(status: number, reason: string | undefined): ProblemKind {
  if (status === 401) return 'signed-out';
  if (status === 403) return 'forbidden';
  if (status === 404) return 'not-found';
  if (status === 409) return 'conflict';
  if (status === 410 || reason === 'Expired' || reason === 'Gone') return 'gone';
  if (status === 429) return 'busy';
  if (status >= 500) return 'disconnected';
  return 'rejected';
}

function detailsOf(body: string): { reason?: string; message?: string } {
  try {
    const parsed: unknown = JSON.parse(body);
    if (parsed === null || typeof parsed !== 'object') return {};
    const record = parsed as { error?: unknown; reason?: unknown; message?: unknown };
    const source = record.error !== null && typeof record.error === 'object' ? (record.error as typeof record) : record;
    return {
      reason: typeof source.reason === 'string' ? source.reason : undefined,
      message: typeof source.message === 'string' ? source.message : undefined,
    };
  } catch {
    return { message: body.trim().slice(0, 400) || undefined };
  }
}
