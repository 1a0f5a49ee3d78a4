// The AI SDK on any chat template: objects and required tools.

import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "rooflet",
  baseURL: `${process.env.ROOFLET_GATEWAY}/v1`,
  apiKey: "any",
  supportsStructuredOutputs: true,
  transformRequestBody: (body) => ({
    ...body,
    chat_template_kwargs: JSON.parse(process.env.ROOFLET_TEMPLATE_VARIABLES ?? "{}"),
  }),
});
const question = {
  model: provider(process.env.ROOFLET_MODEL),
  prompt: "What is rooflet?",
  temperature: 0,
  maxOutputTokens: 600,
  maxRetries: 0,
};

const verdict = z.object({ kind: z.enum(["program", "person"]), certain: z.boolean() });
const answer = await generateText({ ...question, output: Output.object({ schema: verdict }) });
verdict.parse(answer.output);
console.log("ok: returns objects");

const weather = tool({
  description: "The weather of a town.",
  inputSchema: z.object({ town: z.enum(["Bern", "Basel"]) }),
});
const called = await generateText({ ...question, tools: { weather }, toolChoice: "required" });
assert.equal(called.toolCalls[0].toolName, "weather");
assert.match(called.toolCalls[0].input.town, /^(Bern|Basel)$/);
console.log("ok: calls a required tool");
