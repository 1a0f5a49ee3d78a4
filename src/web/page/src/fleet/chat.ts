// Chunks of a streamed chat completion, and the figures of an answer. Pure.

export interface Chunk {
  text: string;
  reasoning: string;
  finishReason?: string;
  promptTokens?: number;
  completionTokens?: number;
  error?: string;
}

/** Parses a line of a server-sent event stream. Returns undefined for lines without data. */
export function parseChunk(line: string): Chunk | undefined {
  const data = /^data:\s?(.*)$/.exec(line.trimEnd())?.[1];
  if (data === undefined || data === '' || data === '[DONE]') return undefined;
  const parsed = JSON.parse(data) as {
    error?: { message?: string };
    usage?: { prompt_tokens?: number; completion_tokens?: number };
    choices?: { delta?: { content?: string | null; reasoning_content?: string | null; reasoning?: string | null }; finish_reason?: string | null }[];
  };
  const choice = parsed.choices?.[0];
  return {
    text: choice?.delta?.content ?? '',
    reasoning: choice?.delta?.reasoning_content ?? choice?.delta?.reasoning ?? '',
    finishReason: choice?.finish_reason ?? undefined,
    promptTokens: parsed.usage?.prompt_tokens,
    completionTokens: parsed.usage?.completion_tokens,
    error: parsed.error?.message,
  };
}

/** Decode speed from the first to the last token, or undefined for fewer than two tokens. */
export function decodeSpeed(completionTokens: number | undefined, firstAt: number | undefined, lastAt: number | undefined): number | undefined {
  if (completionTokens === undefined || firstAt === undefined || lastAt === undefined) return undefined;
  const elapsed = (lastAt - firstAt) / 1000;
  return completionTokens > 1 && elapsed > 0 ? (completionTokens - 1) / elapsed : undefined;
}
