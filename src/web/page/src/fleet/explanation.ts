// The scheduler's message about a replica without a node, in parts. Pure.

export interface Explanation {
  /** Sentence in front of the reasons, such as `0/13 nodes are available`. */
  summary: string;
  /** Reasons by group of nodes or by node. */
  reasons: { where: string; why: string }[];
  /** Changes, each of which alone leads to admission, smallest first. */
  remedies: string[];
}

/** Splits a message. A message without a known structure becomes the summary. */
export function explain(message: string): Explanation {
  const [body = '', after] = message.split(/\bRemed(?:ies|y)(?:, smallest change first)?: /);
  const colon = /^(\d+\/\d+ nodes are available): (.*)$/s.exec(body.trim());
  const remedies = clauses(after ?? '').flatMap((part) => alternatives(part.trim().replace(/\.$/, ''))).filter(Boolean);
  if (!colon) return { summary: body.trim().replace(/\.$/, ''), reasons: [], remedies };
  const reasons = clauses(colon[2]!.replace(/[.\s]+$/, '')).map((part) => {
    const split = /^([^:]{1,60}): (.*)$/s.exec(part);
    return split ? { where: split[1]!, why: split[2]! } : { where: '', why: part };
  });
  return { summary: colon[1]!, reasons, remedies };
}

/** Splits at `; ` outside parentheses. */
function clauses(text: string): string[] {
  const found: string[] = [];
  let depth = 0;
  let start = 0;
  for (let at = 0; at < text.length; at++) {
    if (text[at] === '(') depth += 1;
    else if (text[at] === ')') depth -= 1;
    else if (depth <= 0 && text.startsWith('; ', at)) {
      found.push(text.slice(start, at));
      start = at + 2;
    }
  }
  return [...found, text.slice(start)];
}

/** Splits `a or b for studio-1` into `a for studio-1` and `b for studio-1`. */
function alternatives(part: string): string[] {
  const where = / for [\w.-]+$/.exec(part)?.[0] ?? '';
  const choices = part.slice(0, part.length - where.length).split(' or ');
  return choices.map((choice) => `${choice}${where}`);
}
