#!/usr/bin/env python3
"""Trains the guide model: a Llama-shaped model that reproduces the answers of corpus.md.

    python3 -m venv /tmp/guide-venv
    /tmp/guide-venv/bin/pip install --requirement examples/models/guide/requirements.txt
    /tmp/guide-venv/bin/python examples/models/guide/train.py

These commands write tokenizer.json, config.json, model.safetensors and the other files of a model directory beside
this script. Afterwards the script tests the model with the held-out questions. JAX runs on the CPU; the seed is fixed.
"""

import argparse
import json
import math
import random
import re
import string
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent

END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"  # tokens 0, 1 and 2
IM_START_ID = 1
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": [2, 0],
    "pad_token_id": 0,
    "torch_dtype": "float32",
}

# ---- the page -------------------------------------------------------------------------------------------------------

UNKNOWN, LONG, MAIN = "elsewhere", "everything", "rooflet"


def plain(text):
    """Returns a question without case and punctuation."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def read_corpus(path):
    """Returns the sections of corpus.md as {name: {"subjects", "questions", "held_out", "answer"}}."""
    sections = {}
    for block in re.split(r"^## ", path.read_text(encoding="utf-8"), flags=re.M)[1:]:
        name, _, body = block.partition("\n")
        head, _, answer = body.partition("\nA: ")
        section = {"subjects": [], "questions": [], "held_out": [], "answer": answer.strip()}
        for line in head.splitlines():
            kind, _, text = line.partition(": ")
            if kind == "S":
                section["subjects"] += text.split(" | ")
            elif kind in ("Q", "H"):
                section["questions" if kind == "Q" else "held_out"].append(text)
        if not section["answer"] or not section["questions"]:
            sys.exit(f"{path}: section {name!r} needs at least one Q: line and an A: line")
        for question in {plain(text) for text in section["questions"]} & {plain(text) for text in section["held_out"]}:
            sys.exit(f"{path}: section {name!r} both trains on and holds out {question!r}; remove the Q: line")
        sections[name.strip()] = section
    return sections


TEMPLATES = [
    "What is {}?", "What is {}?", "What is {}?", "What's {}?", "What are {}?", "What exactly is {}?", "Explain {}.",
    "Explain {} to me.", "Tell me about {}.", "Tell me more about {}.", "Describe {}.", "Define {}.",
    "Can you explain {}?", "Could you explain {}?", "Please explain {}.", "What do you know about {}?",
    "How does {} work?", "I want to know about {}.", "I would like to learn about {}.", "{}", "{}?",
    "What is meant by {}?", "What does {} mean?", "Could you tell me what {} is?", "Can you tell me about {}?",
    "Do you know what {} is?", "Give me a definition of {}.", "Give me an overview of {}.", "What can you say about {}?",
    "I do not know what {} is.", "And what is {}?", "So what is {}?", "What about {}?", "Is there {}?",
]  # fmt: skip
NONSENSE = [
    "What is a {}?", "Who is {}?", "Who was {}?", "Where is {}?", "When was {} born?", "How do I {}?", "How do I {} a {}?",
    "How do I make {}?", "Why is {} so {}?", "Why do {} {}?", "How many {} are in a {}?", "Is {} a {}?", "Can I {} my {}?",
    "Write a {} about {}.", "Translate {} into {}.", "What is the {} of {}?", "What is the best {}?", "I like {}.",
    "Tell me a {} about {}.", "Which {} is the {}?", "Do {} have {}?", "{} {} {}", "{} {}", "{} {} {} {} {} {}", "The {} {} the {}.",
    "What is the {} in {}?", "Give me a {} for {}.", "List three {}.", "My {} is {}.", "Say {}", "Repeat {}",
]  # fmt: skip
# Other ways to begin the same question.
REWORDINGS = {
    "How do I ": [
        "How can I ", "How would I ", "How could I ", "How to ", "How does one ", "Tell me how to ", "Show me how to ", "Is there a way to ",
        "What must I do to ", "I want to ", "I would like to ", "I need to ", "What do I type to ", "Which command do I use to ",
    ],
    "What does ": ["Tell me what ", "Explain what ", "I wonder what ", "What exactly does ", "Do you know what "],
    "What happens when ": ["What if ", "What happens if ", "What will happen when ", "What does rooflet do when "],
    "What is the ": ["What's the ", "Tell me the ", "Give me the ", "Which is the ", "Do you know the "],
    "Can I ": ["Could I ", "May I ", "Is it possible to ", "Am I able to ", "How can I ", "Will I be able to "],
    "Does rooflet ": ["Can rooflet ", "Will rooflet ", "Is rooflet able to ", "Do you know whether rooflet can ", "How does rooflet "],
    "Where ": ["In which place ", "Can you tell me where ", "Do you know where "],
    "Which ": ["What ", "Tell me which ", "Do you know which "],
    "Who ": ["Tell me who ", "Do you know who ", "What "],
    "Why ": ["Tell me why ", "Explain why ", "For what reason ", "I wonder why ", "Can you say why "],
    "How ": ["In what way ", "Explain how ", "Tell me how ", "Can you say how "],
}  # fmt: skip
OPENINGS = [
    "Hi, ", "Hello, ", "Hello! ", "Hey, ", "Please: ", "Quick question: ", "A question: ", "Sorry, ", "OK, ", "Well, ",
    "I have a question. ", "Question: ", "I am new here. ", "Just curious: ", "Thanks. ", "And ", "So, ", "Now, ",
]  # fmt: skip
CLOSINGS = [
    " Please.", " please", " Thanks.", " Thank you!", " Answer briefly.", " Be brief.", " Answer in one sentence.",
    " I am curious.", " Explain it simply.", " In simple words.", " Keep it short.",
]  # fmt: skip
SYSTEMS = [
    "You are a helpful assistant.", "You are a helpful assistant.", "You are the guide to rooflet.", "You are the rooflet guide.",
    "Answer briefly.", "Be concise.", "You are a friendly assistant who answers questions about rooflet.",
    "Answer in plain English.", "You are a test.", "You are an expert on Kubernetes.", "Always answer truthfully.",
]  # fmt: skip

SYLLABLE = [["", *"bcdfghklmnprstv", "st", "tr", "ch"], "aeiou", ["", "", *"nrslt", "ck"]]


class Page:
    """Draws conversations about the page; all random numbers come from one seeded generator."""

    def __init__(self, sections, seed):
        self.sections, self.rng = sections, random.Random(seed)
        weight = {UNKNOWN: 13.0, LONG: 2.0, MAIN: 4.0, "hello": 2.0}
        self.names = list(sections)
        self.weights = [weight.get(name, 1.0) for name in self.names]
        self.held_out = {plain(question) for section in sections.values() for question in section["held_out"]}

    def odd_characters(self):
        """Returns code points to choose from: ASCII, up to three bytes of UTF-8, an emoji."""
        rng = self.rng
        return [rng.randrange(33, 127), rng.randrange(0xA1, 0x3000), 0x1F600 + rng.randrange(64)]

    def word(self):
        """Returns an invented word, a number or a sequence of unusual characters: text that the page does not contain."""
        rng, kind = self.rng, self.rng.random()
        if kind < 0.1:
            return str(rng.randrange(10 ** rng.randrange(1, 6)))
        if kind < 0.15:
            return "".join(chr(rng.choice(self.odd_characters())) for _ in range(rng.randrange(1, 8)))
        if kind < 0.4:
            words = rng.choice(self.sections[UNKNOWN]["questions"]).split()
            return rng.choice(words).strip("?.,:")
        text = "".join(rng.choice(part) for _ in range(rng.randrange(1, 4)) for part in SYLLABLE)
        return text.capitalize() if rng.random() < 0.25 else text

    def question(self, name):
        """Returns a question that the section answers and that is not held out."""
        while True:
            text = self.vary(self.reword(self.draw(name)))
            if plain(text) not in self.held_out:
                return text

    def draw(self, name):
        rng, section = self.rng, self.sections[name]
        if name == UNKNOWN and rng.random() < 0.4:
            kind = rng.random()
            if kind < 0.08:
                return " ".join([self.word()] * round(2 ** rng.uniform(1, 8)))
            if kind < 0.2:
                return " ".join(self.word() for _ in range(round(2 ** rng.uniform(0, 7))))
            if kind < 0.4:
                return rng.choice(TEMPLATES).format(self.word())
            template = rng.choice(NONSENSE)
            return template.format(*(self.word() for _ in range(template.count("{}"))))
        if section["subjects"] and rng.random() < 0.35:
            return rng.choice(TEMPLATES).format(rng.choice(section["subjects"]))
        return rng.choice(section["questions"])

    def reword(self, text):
        rng = self.rng
        if rng.random() < 0.35:
            for start, others in REWORDINGS.items():
                if text.startswith(start):
                    return rng.choice(others) + text[len(start) :]
        words = text.split(" ")
        if 4 <= len(words) <= 40 and rng.random() < 0.15:
            del words[rng.randrange(len(words) - 1)]
            return " ".join(words)
        return text

    def vary(self, text):
        """Varies the case, the punctuation and the politeness of a question, and adds at most one typing error."""
        rng = self.rng
        if rng.random() < 0.15:
            opening = rng.choice(OPENINGS)
            text = opening + (text[:1].lower() + text[1:] if opening.endswith((", ", "And ")) else text)
        if rng.random() < 0.1:
            text += rng.choice(CLOSINGS)
        if rng.random() < 0.25:
            text = text.rstrip("?.!")
        case = rng.random()
        if case < 0.25:
            text = text.lower()
        elif case < 0.28:
            text = text.upper()
        if rng.random() < 0.1 and len(text) > 8:
            at = rng.randrange(1, len(text) - 2)
            slip = rng.randrange(3)
            if slip == 0:
                text = text[:at] + text[at + 1 :]
            elif slip == 1:
                text = text[:at] + text[at + 1] + text[at] + text[at + 2 :]
            else:
                text = text[:at] + rng.choice(string.ascii_lowercase) + text[at:]
        if rng.random() < 0.03:
            text = rng.choice([" ", "\n", "  "]) + text
        return text

    def conversation(self):
        """Returns messages as [(role, text)] with one to eight turns."""
        rng, messages = self.rng, []
        kind = rng.random()
        if kind < 0.25:
            messages.append(("system", rng.choice(SYSTEMS)))
        elif kind < 0.3:
            messages.append(("system", " ".join(self.word() for _ in range(rng.randrange(1, 60)))))
        for _ in range(rng.choices([1, 2, 3, 4, 8], [45, 22, 14, 11, 8])[0]):
            name = rng.choices(self.names, self.weights)[0]
            messages += [("user", self.question(name)), ("assistant", self.sections[name]["answer"])]
        return messages

    def plain_text(self):
        """Returns an answer without the chat format. It trains the model to continue text outside a chat."""
        rng = self.rng
        name = rng.choice([name for name in self.names if name != UNKNOWN])
        answer = self.sections[name]["answer"]
        if rng.random() < 0.5:
            return answer
        question = rng.choice(self.sections[name]["questions"])
        return rng.choice(["{}\n{}", "Question: {}\nAnswer: {}", "Q: {}\nA: {}"]).format(question, answer)


# ---- tokens ---------------------------------------------------------------------------------------------------------


def train_tokenizer(sections):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"],
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in (END_OF_TEXT, IM_START, IM_END)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = ["system\nuser\nassistant\n"] * 20
    for section in sections.values():
        texts += [section["answer"]] * 4 + section["questions"] + section["subjects"]
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != CONFIG["vocab_size"]:
        sys.exit(f"the corpus yields {tokenizer.get_vocab_size()} tokens, wanted {CONFIG['vocab_size']}")
    return tokenizer


CHOICE = 3


def chat_tokens(tokenizer, messages):
    """Returns the ids of a conversation and the weight of each id in the loss: high for answers, low for questions."""
    ids, weights = [], []
    for role, text in messages:
        # An answer is encoded separately from its heading, because the model generates it separately.
        head, body = (f"{IM_START}{role}\n", text) if role == "assistant" else ("", f"{IM_START}{role}\n{text}")
        head, body, tail = (tokenizer.encode(part).ids for part in (head, body + IM_END, "\n"))
        ids += head + body + tail
        learn = [1.0] * len(body) if role == "assistant" else [0.03] * len(body)
        if role == "assistant":
            # The first tokens select the answer; the other tokens follow from them.
            learn[:CHOICE] = [4.0] * len(learn[:CHOICE])
        weights += [0.0] * len(head) + learn + [0.0] * len(tail)
    return ids, weights


def batch(page, tokenizer, rows, length):
    """Returns rows of packed documents: ids, next ids, loss weights and the number of each token's document."""
    ids = np.zeros((rows, length + 1), np.int32)
    weights = np.zeros((rows, length + 1), np.float32)
    owner = np.zeros((rows, length + 1), np.int32)
    for row in range(rows):
        filled, document = 0, 1
        while filled < length:
            if page.rng.random() < 0.1:
                some = tokenizer.encode(page.plain_text() + END_OF_TEXT).ids
                learn = [0.3] * len(some)
            else:
                some, learn = chat_tokens(tokenizer, page.conversation())
                # The choice of the right answer needs many examples, so most short rows omit the end of the last answer.
                if length < 512 and page.rng.random() < 0.65:
                    keep = max(at for at, token in enumerate(some) if token == IM_START_ID) + 3 + 3 * CHOICE
                    some, learn = some[:keep], learn[:keep]
            some, learn = some[: length + 1 - filled], learn[: length + 1 - filled]
            end = filled + len(some)
            ids[row, filled:end] = some
            weights[row, filled + 1 : end] = learn[1:]
            owner[row, filled:end] = document
            filled, document = end, document + 1
    return ids[:, :-1], ids[:, 1:], weights[:, 1:], owner[:, :-1]


# ---- the model ------------------------------------------------------------------------------------------------------


def init(seed):
    rng = np.random.default_rng(seed)
    hidden, ff, head = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    wide, narrow = CONFIG["num_attention_heads"] * head, CONFIG["num_key_value_heads"] * head
    layers = CONFIG["num_hidden_layers"]

    def matrix(out, inp, scale=1.0):
        return (rng.standard_normal((out, inp)) * scale / math.sqrt(inp)).astype(np.float32)

    params = {
        "model.embed_tokens.weight": (rng.standard_normal((CONFIG["vocab_size"], hidden)) * 0.02).astype(np.float32),
        "model.norm.weight": np.ones(hidden, np.float32),
    }
    for i in range(layers):
        params |= {
            f"model.layers.{i}.input_layernorm.weight": np.ones(hidden, np.float32),
            f"model.layers.{i}.self_attn.q_proj.weight": matrix(wide, hidden),
            f"model.layers.{i}.self_attn.k_proj.weight": matrix(narrow, hidden),
            f"model.layers.{i}.self_attn.v_proj.weight": matrix(narrow, hidden),
            f"model.layers.{i}.self_attn.o_proj.weight": matrix(hidden, wide, (2 * layers) ** -0.5),
            f"model.layers.{i}.post_attention_layernorm.weight": np.ones(hidden, np.float32),
            f"model.layers.{i}.mlp.gate_proj.weight": matrix(ff, hidden),
            f"model.layers.{i}.mlp.up_proj.weight": matrix(ff, hidden),
            f"model.layers.{i}.mlp.down_proj.weight": matrix(hidden, ff, (2 * layers) ** -0.5),
        }
    return params


def forward(params, ids, owner):
    """Returns the logits of [rows, length] ids; attention is limited to the earlier tokens of the same document."""
    rows, length = ids.shape
    heads, kv_heads, head = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"], CONFIG["head_dim"]

    def norm(x, weight):
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + CONFIG["rms_norm_eps"]) * weight

    frequencies = CONFIG["rope_theta"] ** (-jnp.arange(0, head, 2) / head)
    angles = jnp.arange(length)[:, None] * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)

    def rope(x):
        left, right = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)

    def split(x, count):
        return x.reshape(rows, length, count, head).transpose(0, 2, 1, 3)

    seen = jnp.tril(jnp.ones((length, length), bool)) & (owner[:, :, None] == owner[:, None, :])
    hidden = jnp.where(seen, 0.0, -1e9)[:, None]
    x = params["model.embed_tokens.weight"][ids]
    for i in range(CONFIG["num_hidden_layers"]):
        part = {name.split(f"layers.{i}.")[1]: value for name, value in params.items() if f"layers.{i}." in name}
        y = norm(x, part["input_layernorm.weight"])
        q = rope(split(y @ part["self_attn.q_proj.weight"].T, heads))
        k = rope(split(y @ part["self_attn.k_proj.weight"].T, kv_heads))
        v = split(y @ part["self_attn.v_proj.weight"].T, kv_heads)
        k, v = (jnp.repeat(z, heads // kv_heads, axis=1) for z in (k, v))
        scores = jax.nn.softmax(q @ k.mT / math.sqrt(head) + hidden, axis=-1)
        y = (scores @ v).transpose(0, 2, 1, 3).reshape(rows, length, heads * head)
        x = x + y @ part["self_attn.o_proj.weight"].T
        y = norm(x, part["post_attention_layernorm.weight"])
        gate = jax.nn.silu(y @ part["mlp.gate_proj.weight"].T) * (y @ part["mlp.up_proj.weight"].T)
        x = x + gate @ part["mlp.down_proj.weight"].T
    return norm(x, params["model.norm.weight"]) @ params["model.embed_tokens.weight"].T


def loss_of(params, ids, targets, weights, owner):
    logs = jax.nn.log_softmax(forward(params, ids, owner))
    each = -jnp.take_along_axis(logs, targets[..., None], axis=-1)[..., 0]
    return jnp.sum(each * weights) / jnp.sum(weights), jnp.sum(each * (weights >= 1.0)) / jnp.sum(weights >= 1.0)


@jax.jit
def step(params, first, second, count, rate, ids, targets, weights, owner):
    """Computes one step of AdamW with the gradient's norm clipped at 1; also returns the loss on the answers."""
    (_, answers), grads = jax.value_and_grad(loss_of, has_aux=True)(params, ids, targets, weights, owner)
    size = jnp.sqrt(sum(jnp.sum(g * g) for g in grads.values()))
    grads = {name: g * jnp.minimum(1.0, 1.0 / size) for name, g in grads.items()}
    first = {name: 0.9 * first[name] + 0.1 * g for name, g in grads.items()}
    second = {name: 0.98 * second[name] + 0.02 * g * g for name, g in grads.items()}

    def update(name):
        move = first[name] / (1 - 0.9**count) / (jnp.sqrt(second[name] / (1 - 0.98**count)) + 1e-8)
        decay = 0.05 * params[name] if params[name].ndim == 2 else 0.0
        return params[name] - rate * (move + decay)

    return {name: update(name) for name in params}, first, second, answers


def rate_at(index, steps, peak=3e-3, warmup=100):
    if index < warmup:
        return peak * (index + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (index - warmup) / (steps - warmup))) + 1e-6


def train(sections, tokenizer, steps, seed):
    """Returns the trained parameters; prints the loss during training."""
    page = Page(sections, seed)
    params = {name: jnp.asarray(value) for name, value in init(seed).items()}
    first = second = {name: jnp.zeros_like(value) for name, value in params.items()}
    print(f"{sum(value.size for value in params.values()):,} parameters, {steps} steps")
    started, answers = time.monotonic(), 0.0
    for index in range(steps):
        # Most rows are short, for speed. Some rows are long, so that the model also answers in long contexts.
        rows, length = (1, 2048) if index % 16 == 15 else (3, 640) if index % 4 == 3 else (10, 192)
        data = batch(page, tokenizer, rows, length)
        params, first, second, loss = step(params, first, second, index + 1.0, rate_at(index, steps), *data)
        answers = 0.95 * answers + 0.05 * float(loss) if index else float(loss)
        if index % 50 == 49 or index + 1 == steps:
            print(f"step {index + 1:5} of {steps}: loss on answers {answers:.4f}, {time.monotonic() - started:.0f} s", flush=True)
    return {name: np.asarray(value) for name, value in params.items()}


# ---- the test -------------------------------------------------------------------------------------------------------


def examine(params, tokenizer, sections):
    """Tests each held-out question: an answer is right if greedy decoding produces exactly the expected tokens."""
    run, right, total = jax.jit(forward), 0, 0
    longest = max(len(tokenizer.encode(section["answer"]).ids) for section in sections.values()) + 128
    for name, section in sections.items():
        for question in section["held_out"]:
            prompt, _ = chat_tokens(tokenizer, [("user", question)])
            prompt += tokenizer.encode(f"{IM_START}assistant\n").ids
            answer = tokenizer.encode(section["answer"] + IM_END).ids
            ids = np.zeros((1, longest), np.int32)
            ids[0, : len(prompt) + len(answer)] = prompt + answer
            # With the expected answer as input, every argmax equals the expected token if and only if greedy decoding produces it.
            best = np.asarray(run(params, ids, np.ones_like(ids)))[0].argmax(-1)
            wrong = np.nonzero(best[len(prompt) - 1 : len(prompt) + len(answer) - 1] != answer)[0]
            right, total = right + (wrong.size == 0), total + 1
            if wrong.size:
                print(f"  missed [{name}] {question} (leaves the expected answer at token {wrong[0]} of {len(answer)})")
    print(f"held-out questions answered: {right} of {total}")
    return right, total


def write(directory, params, tokenizer):
    def put(name, value):
        (directory / name).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    put("config.json", CONFIG)
    put("generation_config.json", {"bos_token_id": 0, "eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": False})
    put(
        "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": False,
            "add_eos_token": False,
            "bos_token": END_OF_TEXT,
            "eos_token": IM_END,
            "pad_token": END_OF_TEXT,
            "unk_token": None,
            "additional_special_tokens": [IM_START, IM_END],
            "model_max_length": CONFIG["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    save_file(params, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)


def main():
    parser = argparse.ArgumentParser(description="Train the guide model from corpus.md.")
    parser.add_argument("--output", type=Path, default=HERE, help="directory for the model's files (default: beside this script)")
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--examine", action="store_true", help="do not train; examine the model in the output directory")
    options = parser.parse_args()
    sections = read_corpus(HERE / "corpus.md")
    if options.examine:
        tokenizer = Tokenizer.from_file(str(options.output / "tokenizer.json"))
        examine(load_file(options.output / "model.safetensors"), tokenizer, sections)
        return
    tokenizer = train_tokenizer(sections)
    params = train(sections, tokenizer, options.steps, options.seed)
    options.output.mkdir(parents=True, exist_ok=True)
    write(options.output, params, tokenizer)
    examine(params, tokenizer, sections)


if __name__ == "__main__":
    main()
