//! Text to tokens and back: tokenizer, incremental detokenisation, chat templates, stop strings,
//! grammars, and the parts of an answer (reasoning, content, tool calls).
//!
//! Invariant: the crate is pure. It works on bytes that the caller has read, and receives the time
//! as a value.

pub mod answer;
pub mod detokenizer;
pub mod grammar;
mod harmony;
mod markers;
mod part;
pub mod reasoning;
pub mod stop;
pub mod template;
pub mod tokenizer;
pub mod tool_calls;
