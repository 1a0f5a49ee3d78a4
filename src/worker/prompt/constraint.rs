//! What holds an answer to a format, or to tool calls: from what a request asks for to a grammar over the model's tokens.

use std::sync::Arc;

use super::Prompter;
use crate::openai::ApiError;
use crate::openai::response_format::ResponseFormat;
use crate::openai::tools::{ToolChoice, Tools};
use crate::text::answer::AnswerShape;
use crate::text::grammar::form::{Calls, Form, FormError, Manner};
use crate::text::grammar::vocabulary::{Constraint, ConstraintError, Vocabulary};

impl Prompter {
    /// What holds an answer to its format and to the calls it must make.
    pub(super) fn constraint(
        &self,
        format: Option<&ResponseFormat>,
        tools: Option<&Tools>,
        shape: &AnswerShape,
    ) -> Result<Option<Constraint>, ApiError> {
        let must_call = tools.is_some_and(|tools| tools.choice != ToolChoice::Auto);
        if format.is_none() && !must_call {
            return Ok(None);
        }
        let wanted = |tools: &Tools, name: &str| match &tools.choice {
            ToolChoice::Auto | ToolChoice::Required => true,
            ToolChoice::Function(only) => only == name,
        };
        let calls = tools.map(|tools| Calls {
            functions: tools
                .functions
                .iter()
                .enumerate()
                .filter(|(_, function)| wanted(tools, &function.name))
                .collect(),
            parallel: tools.parallel,
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
            Some(_) | None => "tool_choice",
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
            Ok(constraint)
        };
        begin().map(Some).map_err(|err: ConstraintError| {
            ApiError::invalid_value(param, format!("'{param}' cannot be held to: {err}."))
        })
    }
}
