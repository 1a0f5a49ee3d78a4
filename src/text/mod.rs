//! Text in and out of tokens: tokenizer, incremental detokenisation, chat templates, stop strings,
//! and what is in an answer: reasoning, content, tool calls. Pure: built from
//! bytes that others have read; the only time it knows is handed in.

pub(crate) mod answer;
pub(crate) mod detokenizer;
pub(crate) mod grammar;
mod harmony;
mod markers;
pub(crate) mod reasoning;
pub(crate) mod stop;
pub(crate) mod template;
pub(crate) mod tokenizer;
pub(crate) mod tool_calls;
