//! Text in and out of tokens: tokenizer, incremental detokenisation, chat templates, stop strings. Pure: built from
//! bytes that others have read; the only time it knows is handed in.

pub(crate) mod detokenizer;
pub(crate) mod stop;
pub(crate) mod template;
pub(crate) mod tokenizer;
