//! Rendering of a template in another process, for templates of clients. A job is the complete input of
//! a rendering as JSON.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;

use jiff::Zoned;
use rooflet_inference_api::openai::json::{Json, Members};
use serde::{Deserialize, Serialize};

use super::{ChatTemplate, RenderError, RenderInput};

/// Limit of template instructions of a job. The templates of published models need less than 100,000 for
/// a conversation of 100 messages.
const MAX_INSTRUCTIONS: u64 = 5_000_000;

/// Maximum length of a prompt that a job renders, in bytes.
pub const MAX_JOB_TEXT_BYTES: usize = 16 << 20;

/// Renders jobs in a process with limited memory and time. The result is the prompt, or the reason why
/// the template failed.
pub trait RenderElsewhere: Debug + Send + Sync {
    fn render(&self, job: &str) -> Result<String, String>;
}

#[derive(Debug, Serialize, Deserialize)]
struct Job {
    source: String,
    messages: Vec<Json>,
    variables: Json,
    tools: Option<Vec<Json>>,
    add_generation_prompt: bool,
    special_tokens: BTreeMap<String, String>,
    /// Time in RFC 9557.
    now: String,
}

/// Returns the job that renders the input with this template.
pub(super) fn job_of(source: &str, input: RenderInput<'_>) -> String {
    let job = Job {
        source: source.to_owned(),
        messages: input.messages.to_vec(),
        variables: Json::Object(input.variables.clone()),
        tools: input.tools.map(<[Json]>::to_vec),
        add_generation_prompt: input.add_generation_prompt,
        special_tokens: input.special_tokens.clone(),
        now: input.now.to_string(),
    };
    serde_json::to_string(&job).expect("JSON values serialize")
}

/// Renders a job in this process. Limits the instructions and the length of the prompt; the caller limits
/// time and memory.
pub fn render_job(job: &str) -> Result<String, String> {
    let job: Job = serde_json::from_str(job).map_err(|err| format!("reading the input: {err}"))?;
    let now: Zoned = job
        .now
        .parse()
        .map_err(|err| format!("reading the time: {err}"))?;
    let template = ChatTemplate::compile("chat_template", &job.source).map_err(|err| err.to_string())?;
    let variables = match job.variables {
        Json::Object(members) => members,
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Array(_) => Members::default(),
    };
    let input = RenderInput {
        messages: &job.messages,
        variables: &variables,
        tools: job.tools.as_deref(),
        add_generation_prompt: job.add_generation_prompt,
        special_tokens: &job.special_tokens,
        now: &now,
    };
    let template = template.with_limits(MAX_INSTRUCTIONS, MAX_JOB_TEXT_BYTES);
    template.render(input).map_err(|RenderError { problem }| problem)
}

/// Writer that fails if a prompt is too long.
#[derive(Debug)]
pub(super) struct BoundedText {
    bytes: Vec<u8>,
    max_bytes: usize,
}

impl BoundedText {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self {
            bytes: Vec::new(),
            max_bytes,
        }
    }

    pub(super) fn into_text(self) -> String {
        String::from_utf8(self.bytes).expect("templates render text")
    }
}

impl io::Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.max_bytes {
            return Err(io::Error::other(format!(
                "the rendered prompt is longer than {} bytes",
                self.max_bytes
            )));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rooflet_inference_api::openai::message;

    /// Renderer in the same process.
    #[derive(Debug)]
    struct Here;

    impl RenderElsewhere for Here {
        fn render(&self, job: &str) -> Result<String, String> {
            render_job(job)
        }
    }

    fn render(template: &ChatTemplate) -> Result<String, String> {
        let rendered = template.render(RenderInput {
            messages: &[message::user("hello")],
            variables: &Members::new([("b", Json::Bool(true)), ("a", Json::Array(vec![Json::Null]))]),
            tools: None,
            add_generation_prompt: true,
            special_tokens: &[("bos_token".to_owned(), "<s>".to_owned())].into(),
            now: &"2026-11-27T09:30:00+01:00[Europe/Berlin]"
                .parse()
                .expect("a time"),
        });
        rendered.map_err(|err| err.to_string())
    }

    fn elsewhere(source: &str) -> Result<String, String> {
        render(&ChatTemplate::elsewhere(source, std::sync::Arc::new(Here)))
    }

    #[test]
    fn job_renders_as_the_template_itself() {
        let source = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}\
                      {% if add_generation_prompt %} {{ a|tojson }}{{ b|tojson }}{{ strftime_now('%H:%M') }}{% endif %}";
        let own = render(&ChatTemplate::compile("f", source).unwrap()).unwrap();
        assert_eq!(own, "<s>user: hello [null]true09:30");
        assert_eq!(elsewhere(source), Ok(own));
    }

    #[test]
    fn errors_of_a_job_are_those_of_the_template() {
        assert_eq!(elsewhere("{{ raise_exception('no') }}"), Err("no".to_owned()));
        let invalid = elsewhere("{% if %}").unwrap_err();
        assert!(invalid.starts_with("chat_template: chat template: "), "{invalid}");
    }

    #[test]
    fn job_has_limits_of_instructions_and_length() {
        let endless = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}";
        let problem = elsewhere(endless).unwrap_err();
        assert!(problem.contains("ran out of fuel"), "{problem}");
        let long = "{% set s = 'x' * 1000000 %}{% for i in range(100) %}{{ s }}{% endfor %}";
        let problem = elsewhere(long).unwrap_err();
        assert_eq!(problem, "the rendered prompt is longer than 16777216 bytes");
    }
}
