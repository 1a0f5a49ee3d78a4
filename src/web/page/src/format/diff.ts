// Line differences of two texts.

export interface DiffLine {
  kind: 'same' | 'removed' | 'added';
  text: string;
}

/** Returns the shortest edit of the lines, by their longest common subsequence. */
export function diffLines(before: string, after: string): DiffLine[] {
  const a = before === '' ? [] : before.split('\n');
  const b = after === '' ? [] : after.split('\n');
  const width = b.length + 1;
  const common = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      common[i * width + j] = a[i] === b[j]
        ? common[(i + 1) * width + j + 1]! + 1
        : Math.max(common[(i + 1) * width + j]!, common[i * width + j + 1]!);
    }
  }
  const lines: DiffLine[] = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push({ kind: 'same', text: a[i]! });
      i++;
      j++;
    } else if (i < a.length && (j >= b.length || common[(i + 1) * width + j]! >= common[i * width + j + 1]!)) {
      lines.push({ kind: 'removed', text: a[i++]! });
    } else {
      lines.push({ kind: 'added', text: b[j++]! });
    }
  }
  return lines;
}

/** Removes unchanged lines that are more than `context` lines away from a change. `null` is a gap. */
export function hunks(lines: DiffLine[], context = 3): (DiffLine | null)[] {
  const near = new Set<number>();
  lines.forEach((line, index) => {
    if (line.kind === 'same') return;
    for (let at = index - context; at <= index + context; at++) near.add(at);
  });
  const kept: (DiffLine | null)[] = [];
  lines.forEach((line, index) => {
    if (near.has(index)) kept.push(line);
    else if (kept.length > 0 && kept[kept.length - 1] !== null) kept.push(null);
  });
  if (kept[kept.length - 1] === null) kept.pop();
  return kept;
}
