// The AI SDK against a gateway: text, streams, objects and tools.

import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "rooflet",
  baseURL: `${process.env.ROOFLET_GATEWAY}/v1`,
  apiKey: "any",
  supportsStructuredOutputs: true,
});
const question = {
  model: provider("guide"),
  prompt: "What is rooflet?",
  temperature: 0,
  maxOutputTokens: 12,
  maxRetries: 0,
};
const verdict = z.object({ kind: z.enum(["program", "person"]), certain: z.boolean() });

async function check(name, body) {
  try {
    await body();
  } catch (error) {
    console.error(error);
    console.error(`failed: ${name}`);
    process.exit(1);
  }
  console.log(`ok: ${name}`);
}

await check("streams the same text", async () => {
  const whole = await generateText(question);
  assert.ok(whole.text);
  assert.equal(whole.usage.outputTokens, 12);
  let text = "";
  for await (const part of streamText(question).textStream) text += part;
  assert.equal(text, whole.text);
});

await check("returns objects", async () => {
  const request = { ...question, maxOutputTokens: 200, output: Output.object({ schema: verdict }) };
  verdict.parse((await generateText(request)).output);
  let last;
  for await (const part of streamText(request).partialOutputStream) last = part;
  verdict.parse(last);
});

await check("calls a required tool", async () => {
  const weather = tool({
    description: "The weather of a town.",
    inputSchema: z.object({ town: z.enum(["Bern", "Basel"]) }),
  });
  const answer = await generateText({
    ...question,
    maxOutputTokens: 200,
    tools: { weather },
    toolChoice: "required",
  });
  assert.equal(answer.toolCalls.length, 1);
  assert.equal(answer.toolCalls[0].toolName, "weather");
  assert.match(answer.toolCalls[0].input.town, /^(Bern|Basel)$/);
});
