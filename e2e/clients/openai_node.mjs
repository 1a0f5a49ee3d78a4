// openai-node against a gateway.

import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.ROOFLET_GATEWAY}/v1`, apiKey: "any", maxRetries: 0 });
const question = {
  model: "guide",
  messages: [{ role: "user", content: "What is rooflet?" }],
  temperature: 0,
  max_tokens: 12,
};

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

await check("returns a whole answer", async () => {
  const answer = await client.chat.completions.create(question);
  assert.ok(answer.choices[0].message.content);
  assert.equal(answer.usage.completion_tokens, 12);
});

await check("streams the same text", async () => {
  const whole = await client.chat.completions.create(question);
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...question, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  assert.equal(text, whole.choices[0].message.content);
});

await check("aborts a stream", async () => {
  const stream = await client.chat.completions.create({ ...question, max_tokens: 2000, stream: true });
  for await (const chunk of stream) {
    if (chunk.choices[0].delta.content) {
      stream.controller.abort();
      break;
    }
  }
  const after = await client.chat.completions.create({ ...question, max_tokens: 1 });
  assert.equal(after.usage.completion_tokens, 1);
});

await check("raises specific errors", async () => {
  await assert.rejects(client.chat.completions.create({ ...question, model: "nobody" }), OpenAI.NotFoundError);
  await assert.rejects(client.chat.completions.create({ ...question, max_tokens: 0 }), OpenAI.BadRequestError);
});
