// ollama-js against a gateway.

import assert from "node:assert/strict";
import { Ollama } from "ollama";

const client = new Ollama({ host: process.env.ROOFLET_GATEWAY });
const question = {
  model: "guide",
  messages: [{ role: "user", content: "What is rooflet?" }],
  options: { temperature: 0, num_predict: 12 },
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

await check("lists and shows models", async () => {
  const { models } = await client.list();
  assert.deepEqual(models.map((model) => model.name), ["guide:latest"]);
  const shown = await client.show({ model: models[0].name });
  assert.ok(shown.capabilities.includes("completion"));
  const running = await client.ps();
  assert.equal(running.models[0].name, "guide:latest");
});

await check("streams the same text as a whole answer", async () => {
  const whole = await client.chat(question);
  assert.equal(whole.eval_count, 12);
  let text = "";
  for await (const part of await client.chat({ ...question, stream: true })) {
    text += part.message.content;
  }
  assert.equal(text, whole.message.content);
  const generated = await client.generate({ model: "guide", prompt: "What is rooflet?", options: question.options });
  assert.equal(generated.response, whole.message.content);
});

await check("aborts a stream", async () => {
  const stream = await client.chat({ ...question, options: { num_predict: 2000 }, stream: true });
  for await (const _part of stream) {
    stream.abort();
    break;
  }
  const after = await client.chat({ ...question, options: { num_predict: 1 } });
  assert.equal(after.eval_count, 1);
});

await check("embeds texts", async () => {
  const { embeddings } = await client.embed({ model: "guide", input: ["a", "b"] });
  assert.equal(embeddings.length, 2);
});

await check("raises specific errors", async () => {
  await assert.rejects(client.chat({ ...question, model: "nobody" }), { status_code: 404 });
  await assert.rejects(client.chat({ ...question, options: { top_p: 2 } }), { status_code: 400 });
});
