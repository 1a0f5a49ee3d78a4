//! What holds an answer to a format, or to tool calls: from what a request asks for to a grammar
//! over the model's tokens.

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
use rooflet_text::grammar::constraint::{Constraint, ConstraintError};
use rooflet_text::grammar::form::{Calls, Form, FormError, Manner};
use rooflet_text::grammar::vocabulary::Vocabulary;

/// What is kept of the formats of earlier requests, those that were used last. Agents ask for a few
/// again and again; each takes some megabytes, and odd ones many.
const MAX_KEPT: usize = 32;
const MAX_KEPT_BYTES: Bytes = Bytes(64 << 20);

/// Constraints as they begin, by what was asked for, the last one used at the end.
#[derive(Debug, Default)]
pub(super) struct Constraints(Mutex<VecDeque<([u8; 32], Constraint)>>);

impl Constraints {
    fn get(&self, key: &[u8; 32]) -> Option<Constraint> {
        let mut kept = lock(&self.0);
        let place = kept.iter().position(|(own, _)| own == key)?;
        // One that is worn is made anew.
        let found = kept.remove(place).filter(|(_, found)| !found.is_worn())?;
        let constraint = found.1.clone();
        kept.push_back(found);
        tidy(&mut kept);
        Some(constraint)
    }

    fn keep(&self, key: [u8; 32], constraint: Constraint) {
        let mut kept = lock(&self.0);
        kept.retain(|(own, _)| *own != key);
        kept.push_back((key, constraint));
        tidy(&mut kept);
    }
}

/// Lets go of those that were not used for longest, but for the last one.
fn tidy(kept: &mut VecDeque<([u8; 32], Constraint)>) {
    let mut bytes = Bytes(0);
    let fits = |(index, (_, constraint)): &(usize, &([u8; 32], Constraint))| {
        bytes += constraint.bytes().unwrap_or(Bytes(0));
        *index == 0 || (*index < MAX_KEPT && bytes <= MAX_KEPT_BYTES)
    };
    let keep = kept.iter().rev().enumerate().take_while(fits).count();
    kept.drain(..kept.len() - keep);
}

/// All that a constraint follows from, besides the model.
fn key(format: Option<&ResponseFormat>, tools: Option<&Tools>, shape: &AnswerShape) -> [u8; 32] {
    let tools = tools.map(|tools| (&tools.functions, &tools.choice, tools.parallel));
    let format = format.map(|format| &format.content);
    let asked = format!("{format:?} {tools:?} {:?}", shape.reasoning);
    Sha256::digest(asked.as_bytes()).into()
}

impl Prompter {
    /// What holds an answer to its format and to the calls it must make.
    pub(super) fn constraint(
        &self,
        format: Option<&ResponseFormat>,
        tools: Option<&Tools>,
        shape: &AnswerShape,
    ) -> Result<Option<Constraint>, ApiError> {
        let must_call = tools.is_some_and(|tools| tools.choice != ToolChoice::Auto);
        if format.is_none() && !tools.is_some_and(Tools::constrain) {
            return Ok(None);
        }
        let key = key(format, tools, shape);
        if let Some(constraint) = self.constraints.get(&key) {
            return Ok(Some(constraint));
        }
        let wanted = |tools: &Tools, name: &str| match &tools.choice {
            ToolChoice::Auto | ToolChoice::Required => true,
            ToolChoice::Function(only) => only == name,
        };
        let calls = tools.map(|tools| Calls {
            functions: tools
                .functions
                .iter()
                .filter(|function| wanted(tools, &function.name))
                .map(|function| (tools.place(&function.name).unwrap_or(0), function))
                .collect(),
            parallel: tools.parallel,
            // Nothing else is asked for than that strict functions are called well.
            optional: format.is_none() && !must_call,
        });
        let form = Form {
            // An answer that must be a call has no content.
            content: format.filter(|_| !must_call).map(|format| &format.content),
            calls,
        };
        let manner = Manner {
            tokenizer: &self.tokenizer,
            reasoning: shape.reasoning,
            tool_format: shape.tool_format,
        };
        let param = match format {
            Some(format) if !must_call => format.param.as_str(),
            Some(_) | None if must_call => "tool_choice",
            Some(_) | None => "tools",
        };
        let grammar = form.grammar(&manner).map_err(|err| {
            let param = match &err {
                FormError::Parameters { function, .. } => format!("tools[{function}].function.parameters"),
                FormError::Schema(_) | FormError::Pattern(_) | FormError::TooLarge(_) | FormError::Empty => {
                    param.to_owned()
                }
            };
            ApiError::invalid_value(&param, format!("'{param}' cannot be held to: {err}."))
        })?;
        let size = self.vocab_size as usize;
        let vocabulary = self
            .vocabulary
            .get_or_init(|| Vocabulary::new(&self.tokenizer, size).map(Arc::new));
        let vocabulary = vocabulary.clone().ok_or_else(|| {
            let message = format!(
                "'{param}' is not supported for this model: its tokens do not say what text they are."
            );
            ApiError::unsupported(param, message)
        })?;
        let begin = || {
            let mut constraint = Constraint::new(grammar, vocabulary)?;
            // Here, where it holds up nobody: the engine finds it done.
            constraint.mask()?;
            self.constraints.keep(key, constraint.clone());
            Ok(constraint)
        };
        begin().map(Some).map_err(|err: ConstraintError| {
            ApiError::invalid_value(param, format!("'{param}' cannot be held to: {err}."))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::prompter;
    use crate::prompt::Chat;
    use rooflet_inference_api::openai::request::{ChatRequest, Options};
    use rooflet_text::grammar::constraint::Constraint;

    fn constraint(prompter: &super::Prompter, extra: &str) -> Constraint {
        let body = format!(r#"{{"model": "m", "messages": [{{"role": "user", "content": "Hi"}}], {extra}}}"#);
        let request = ChatRequest::parse(body.as_bytes()).unwrap();
        let options: &Options = &request.options;
        let chat = prompter.chat(Chat::from(&request), options, &jiff::Zoned::default());
        chat.unwrap().request.constraint.unwrap()
    }

    #[test]
    fn formats_are_built_once_and_the_oldest_forgotten() {
        let prompter = prompter(1000);
        let kept = || prompter.constraints.0.lock().unwrap().len();
        let choice = |text: &str| format!(r#""guided_choice": ["{text}"]"#);
        let first = constraint(&prompter, &choice("a")).mask().unwrap();
        let again = constraint(&prompter, &choice("a")).mask().unwrap();
        assert!(std::sync::Arc::ptr_eq(&first, &again), "found, not built");
        let other = constraint(&prompter, &choice("b")).mask().unwrap();
        assert_ne!(first, other);
        for number in 0..super::MAX_KEPT {
            constraint(&prompter, &choice(&number.to_string()));
        }
        assert_eq!(kept(), super::MAX_KEPT);
        let anew = constraint(&prompter, &choice("a")).mask().unwrap();
        assert!(!std::sync::Arc::ptr_eq(&first, &anew));
        assert_eq!(first, anew);
    }
}
