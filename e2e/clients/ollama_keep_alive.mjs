// ollama-js against a server that keeps the model loaded for one hour: residency of the model.

import assert from "node:assert/strict";
import { Ollama } from "ollama";

const client = new Ollama({ host: process.env.ROOFLET_GATEWAY });
const model = "brief";
const deadline = Date.now() + 60_000;

async function running() {
  const { models } = await client.ps();
  return models.find((one) => one.name === `${model}:latest`);
}

async function waitUntilUnloaded() {
  while (await running()) assert.ok(Date.now() < deadline, "the model is still loaded");
}

const unloaded = await client.generate({ model, prompt: "", keep_alive: 0 });
assert.equal(unloaded.done_reason, "unload");
await waitUntilUnloaded();
const loaded = await client.chat({ model, messages: [], keep_alive: "10m" });
assert.equal(loaded.done_reason, "load");
const minutes = (new Date((await running()).expires_at) - Date.now()) / 60_000;
assert.ok(minutes > 9 && minutes < 10.1, `${minutes}`);
const options = { temperature: 0, num_predict: 4 };
const answer = await client.generate({ model, prompt: "What is rooflet?", options, keep_alive: 0 });
assert.equal(answer.eval_count, 4);
await waitUntilUnloaded();
console.log("ok: keep_alive");
