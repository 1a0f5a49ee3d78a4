//! Text in and out of tokens: tokenizer, incremental detokenisation, chat templates, stop strings,
//! and what is in an answer: reasoning, content, tool calls. Pure: built from
//! bytes that others have read; the only time it knows is handed in.

pub mod answer;
pub mod detokenizer;
pub mod grammar;
mod harmony;
mod markers;
pub mod reasoning;
pub mod stop;
pub mod template;
pub mod tokenizer;
pub mod tool_calls;
