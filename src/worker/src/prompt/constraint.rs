//! Grammar constraints of answers: construction from response format and tools, and a cache.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use sha2::{Digest as _, Sha256};

use super::Prompter;
use rooflet_base::mutex::lock;
use rooflet_base::units::Bytes;
use rooflet_inference_api::openai::ApiError;
use rooflet_inference_api::openai::response_format::ResponseFormat;
use rooflet_inference_api::openai::tools::{ToolChoice, Tools};
use rooflet_text::answer::AnswerShape;
use rooflet_text::grammar::answer_format::{AnswerFormat, AnswerFormatError, ModelSyntax, PermittedCalls};
use rooflet_text::grammar::constraint::{Constraint, ConstraintError};
use rooflet_text::grammar::vocabulary::Vocabulary;

/// Maximum number of cached constraints. Agents repeat a few formats. A constraint typically needs
/// a few megabytes, but can need much more.
const MAX_CACHED: usize = 32;
/// Maximum total size of cached constraints.
const MAX_CACHED_BYTES: Bytes = Bytes(64 << 20);

/// Cache of constraints in their initial state, in the order of their last use.
#[derive(Debug, Default)]
pub(super) struct ConstraintCache(Mutex<VecDeque<([u8; 32], Constraint)>>);

impl ConstraintCache {
    fn get(&self, key: &[u8; 32]) -> Option<Constraint> {
        let mut entries = lock(&self.0);
        let place = entries.iter().position(|(own, _)| own == key)?;
        // A constraint that needs a rebuild is removed; the caller builds it again.
        let found = entries
            .remove(place)
            .filter(|(_, found)| !found.needs_rebuild())?;
        let constraint = found.1.clone();
        entries.push_back(found);
        evict(&mut entries);
        Some(constraint)
    }

    fn insert(&self, key: [u8; 32], constraint: Constraint) {
        let mut entries = lock(&self.0);
        entries.retain(|(own, _)| *own != key);
        entries.push_back((key, constraint));
        evict(&mut entries);
    }
}

/// Evicts the least recently used constraints beyond the limits. Always keeps the most recently
/// used one.
fn evict(entries: &mut VecDeque<([u8; 32], Constraint)>) {
    let mut bytes = Bytes(0);
    let fits = |(index, (_, constraint)): &(usize, &([u8; 32], Constraint))| {
        bytes += constraint.bytes().unwrap_or(Bytes(0));
        *index == 0 || (*index < MAX_CACHED && bytes <= MAX_CACHED_BYTES)
    };
    let count = entries.iter().rev().enumerate().take_while(fits).count();
    entries.drain(..entries.len() - count);
}

/// Returns the cache key: hash of all inputs that determine a constraint, except the model.
fn key(format: Option<&ResponseFormat>, tools: Option<&Tools>, shape: &AnswerShape) -> [u8; 32] {
    let tools = tools.map(|tools| (&tools.functions, &tools.choice, tools.parallel));
    let format = format.map(|format| &format.content);
    // Text requests, and chats with other templates, have other forms of answers.
    let inputs = format!(
        "{format:?} {tools:?} {:?} {:?}",
        shape.reasoning, shape.tool_format
    );
    Sha256::digest(inputs.as_bytes()).into()
}

impl Prompter {
    /// Returns the constraint for a response format and tools. `None`: the answer is unconstrained.
    ///
    /// # Errors
    /// Returns an error if no grammar can enforce the format.
    pub(super) fn constraint(
        &self,
        format: Option<&ResponseFormat>,
        tools: Option<&Tools>,
        shape: &AnswerShape,
    ) -> Result<Option<Constraint>, ApiError> {
        let must_call = tools.is_some_and(|tools| tools.choice != ToolChoice::Auto);
        if format.is_none() && !tools.is_some_and(Tools::is_constrained) {
            return Ok(None);
        }
        let key = key(format, tools, shape);
        if let Some(constraint) = self.constraints.get(&key) {
            return Ok(Some(constraint));
        }
        let is_callable = |tools: &Tools, name: &str| match &tools.choice {
            ToolChoice::Auto | ToolChoice::Required => true,
            ToolChoice::Function(only) => only == name,
        };
        let calls = tools.map(|tools| PermittedCalls {
            functions: tools
                .functions
                .iter()
                .filter(|function| is_callable(tools, &function.name))
                .map(|function| (tools.index_of(&function.name).unwrap_or(0), function))
                .collect(),
            parallel: tools.parallel,
            // Without a format or a required call, the grammar constrains only the arguments of
            // strict functions.
            optional: format.is_none() && !must_call,
        });
        let answer_format = AnswerFormat {
            // An answer that must call a function has no content.
            content: format.filter(|_| !must_call).map(|format| &format.content),
            calls,
        };
        let syntax = ModelSyntax {
            tokenizer: &self.tokenizer,
            reasoning: shape.reasoning,
            tool_format: shape.tool_format,
        };
        let param = match format {
            Some(format) if !must_call => format.param.as_str(),
            Some(_) | None if must_call => "tool_choice",
            Some(_) | None => "tools",
        };
        let grammar = answer_format.grammar(&syntax).map_err(|err| {
            let param = match &err {
                AnswerFormatError::Parameters { function, .. } => {
                    format!("tools[{function}].function.parameters")
                }
                AnswerFormatError::Schema(_)
                | AnswerFormatError::Pattern(_)
                | AnswerFormatError::Grammar(_)
                | AnswerFormatError::TooLarge(_)
                | AnswerFormatError::Empty => param.to_owned(),
            };
            ApiError::invalid_value(&param, format!("'{param}' cannot be enforced: {err}."))
        })?;
        let size = self.vocab_size as usize;
        let vocabulary = self
            .vocabulary
            .get_or_init(|| Vocabulary::new(&self.tokenizer, size).map(Arc::new));
        let vocabulary = vocabulary.clone().ok_or_else(|| {
            let message = format!(
                "'{param}' is not supported for this model: its tokenizer does not define the text of its tokens."
            );
            ApiError::unsupported(param, message)
        })?;
        let begin = || {
            let mut constraint = Constraint::new(grammar, vocabulary)?;
            // Computes the first mask on this thread, to relieve the engine thread.
            constraint.mask()?;
            self.constraints.insert(key, constraint.clone());
            Ok(constraint)
        };
        begin().map(Some).map_err(|err: ConstraintError| {
            ApiError::invalid_value(param, format!("'{param}' cannot be enforced: {err}."))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::prompter;
    use crate::prompt::Chat;
    use rooflet_inference_api::openai::request::{ChatRequest, Options};
    use rooflet_text::answer::AnswerShape;
    use rooflet_text::grammar::constraint::Constraint;
    use rooflet_text::tool_calls::ToolFormat;

    fn constraint(prompter: &super::Prompter, extra: &str) -> Constraint {
        let body = format!(r#"{{"model": "m", "messages": [{{"role": "user", "content": "Hi"}}], {extra}}}"#);
        let request = ChatRequest::parse(body.as_bytes()).unwrap();
        let options: &Options = &request.options;
        let chat = prompter.chat(Chat::from(&request), options, &jiff::Zoned::default());
        chat.unwrap().request.constraint.unwrap()
    }

    #[test]
    fn constraints_of_other_tool_formats_are_not_reused() {
        let prompter = prompter(1000);
        let body =
            br#"{"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tool_choice": "required",
            "tools": [{"type": "function", "function": {"name": "f"}}]}"#;
        let tools = ChatRequest::parse(body).unwrap().tools.unwrap();
        let first_mask = |tool_format| {
            let shape = AnswerShape {
                reasoning: None,
                tool_format,
                tools: None,
            };
            let constraint = prompter.constraint(None, Some(&tools), &shape).unwrap();
            constraint.unwrap().mask().unwrap()
        };
        let tagged = first_mask(ToolFormat::Tagged);
        assert_ne!(tagged, first_mask(ToolFormat::Llama));
        assert_eq!(tagged, first_mask(ToolFormat::Tagged));
    }

    #[test]
    fn caches_constraints_and_evicts_oldest() {
        let prompter = prompter(1000);
        let cached = || prompter.constraints.0.lock().unwrap().len();
        let choice = |text: &str| format!(r#""guided_choice": ["{text}"]"#);
        let first = constraint(&prompter, &choice("a")).mask().unwrap();
        let again = constraint(&prompter, &choice("a")).mask().unwrap();
        assert!(
            std::sync::Arc::ptr_eq(&first, &again),
            "the cache has the constraint"
        );
        let other = constraint(&prompter, &choice("b")).mask().unwrap();
        assert_ne!(first, other);
        for number in 0..super::MAX_CACHED {
            constraint(&prompter, &choice(&number.to_string()));
        }
        assert_eq!(cached(), super::MAX_CACHED);
        let rebuilt = constraint(&prompter, &choice("a")).mask().unwrap();
        assert!(!std::sync::Arc::ptr_eq(&first, &rebuilt));
        assert_eq!(first, rebuilt);
    }
}
