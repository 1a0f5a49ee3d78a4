//! Chat templates of requests. A template is a program of a client, so it runs in a process with limited
//! memory and time, and it cannot affect other requests.

use std::io::{Read, Write};
use std::ops::Deref;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::chat_format::ChatFormat;
use rooflet_inference_api::openai::ApiError;
use rooflet_text::template::{ChatTemplate, MAX_JOB_TEXT_BYTES, RenderElsewhere};
use rooflet_text::tokenizer::Tokenizer;

/// Hidden verb of the program that renders a template.
const VERB: &str = "render-template";

/// Maximum number of templates that are rendered at the same time.
const MAX_CONCURRENT: usize = 2;

/// Maximum output of the renderer: JSON writes one byte of text as up to six bytes.
const MAX_OUTPUT_BYTES: u64 = 6 * MAX_JOB_TEXT_BYTES as u64 + 1024;

/// Setting of a worker for chat templates of requests.
#[derive(Debug)]
pub(crate) struct RequestTemplates {
    /// `None`: requests with a template are rejected.
    renderer: Option<Arc<dyn RenderElsewhere>>,
    permits: Arc<Semaphore>,
}

/// Result of a rendering, as the renderer prints it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RenderedTemplate {
    Text(String),
    /// Reason why the template failed.
    Problem(String),
}

/// Chat format for one request.
#[derive(Debug)]
pub(super) enum FormatOfRequest<'a> {
    Model(&'a ChatFormat),
    /// Format of the request's own template.
    Own {
        format: Box<ChatFormat>,
        _permit: OwnedSemaphorePermit,
    },
}

impl FormatOfRequest<'_> {
    /// Returns the error for a template that failed.
    pub(super) fn rejection(&self, problem: &str) -> ApiError {
        match self {
            Self::Model(_) => ApiError::invalid_value(
                "messages",
                format!("The model's chat template rejects these messages: {problem}"),
            ),
            Self::Own { .. } => {
                ApiError::invalid_value("chat_template", format!("'chat_template' failed: {problem}"))
            }
        }
    }
}

impl Deref for FormatOfRequest<'_> {
    type Target = ChatFormat;

    fn deref(&self) -> &ChatFormat {
        match self {
            Self::Model(format) => format,
            Self::Own { format, .. } => format,
        }
    }
}

impl RequestTemplates {
    /// Rejects templates of requests.
    pub(crate) fn rejected() -> Self {
        Self {
            renderer: None,
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT)),
        }
    }

    pub(crate) fn rendered_by(renderer: Arc<dyn RenderElsewhere>) -> Self {
        Self {
            renderer: Some(renderer),
            ..Self::rejected()
        }
    }

    /// Returns the chat format of a request's template.
    pub(super) fn format(
        &self,
        source: &str,
        tokenizer: &Tokenizer,
    ) -> Result<FormatOfRequest<'static>, ApiError> {
        let Some(renderer) = &self.renderer else {
            return Err(ApiError::unsupported(
                "chat_template",
                "This model does not accept 'chat_template' in requests: omit the parameter, or set \
                 spec.serving.allowRequestChatTemplate of the ModelDeployment (--allow-request-chat-template of a \
                 worker).",
            ));
        };
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| {
            ApiError::rate_limit_exceeded("Other requests with a 'chat_template' are in progress.", 1)
        })?;
        let template = ChatTemplate::elsewhere(source, Arc::clone(renderer));
        Ok(FormatOfRequest::Own {
            format: Box::new(ChatFormat::new(template, tokenizer)),
            _permit: permit,
        })
    }
}

/// Renderer in a child process of this program.
#[derive(Debug)]
pub(crate) struct ChildRenderer {
    pub(crate) program: PathBuf,
}

impl RenderElsewhere for ChildRenderer {
    fn render(&self, job: &str) -> Result<String, String> {
        let failed = |err: std::io::Error| format!("running the template: {err}");
        let mut child = Command::new(&self.program)
            .arg(VERB)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        // The child reads its whole input before it writes. If the child ends early, its status has the
        // reason.
        if let Some(mut input) = child.stdin.take() {
            drop(input.write_all(job.as_bytes()));
        }
        let mut output = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            drop(stdout.take(MAX_OUTPUT_BYTES).read_to_end(&mut output));
        }
        let status = child.wait().map_err(failed)?;
        if !status.success() {
            return Err(end_of(status));
        }
        match serde_json::from_slice(&output) {
            Ok(RenderedTemplate::Text(text)) => Ok(text),
            Ok(RenderedTemplate::Problem(problem)) => Err(problem),
            Err(err) => Err(format!("reading the output of the template: {err}")),
        }
    }
}

/// Returns the reason why the system or the limit of memory ended the renderer.
fn end_of(status: ExitStatus) -> String {
    let is_cpu_limit = |signal| [nix::libc::SIGXCPU, nix::libc::SIGKILL].contains(&signal);
    match (status.code(), status.signal()) {
        (Some(MEMORY_EXCEEDED), _) => "the template needs too much memory".to_owned(),
        (_, Some(signal)) if is_cpu_limit(signal) => "the template needs too much time".to_owned(),
        (_, _) => format!("the template ended its process ({status})"),
    }
}

/// Exit status of a renderer that exceeds its memory.
pub const MEMORY_EXCEEDED: i32 = 86;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use jiff::Zoned;

    use super::super::tests::prompter;
    use super::super::{Chat, Prompter};
    use super::*;
    use rooflet_inference_api::openai::json::Members;
    use rooflet_inference_api::openai::message;
    use rooflet_inference_api::openai::request::PromptEnd;
    use rooflet_text::template::render_job;

    /// Renderer in this process, which records the number of jobs.
    #[derive(Debug, Default)]
    struct Here(Mutex<usize>);

    impl RenderElsewhere for Here {
        fn render(&self, job: &str) -> Result<String, String> {
            *self.0.lock().unwrap() += 1;
            render_job(job)
        }
    }

    fn tokens(prompter: &Prompter, template: Option<&str>) -> Result<String, ApiError> {
        let chat = Chat {
            messages: &[message::user("hello")],
            template,
            variables: &Members::default(),
            tools: None,
            ending: PromptEnd::Answer,
        };
        let tokens = prompter.chat_tokens(chat, &Zoned::default())?;
        Ok(prompter.tokenizer().decode_with_special(&tokens).unwrap())
    }

    #[test]
    fn template_of_a_request_is_rejected_by_default() {
        let err = tokens(&prompter(1000), Some("{{ messages[0].content }}")).unwrap_err();
        assert_eq!(
            (err.status.as_u16(), err.param.as_deref()),
            (400, Some("chat_template"))
        );
        assert!(
            err.message.contains("spec.serving.allowRequestChatTemplate"),
            "{}",
            err.message
        );
    }

    #[test]
    fn template_of_a_request_replaces_that_of_the_model() {
        let here = Arc::new(Here::default());
        let renderer: Arc<dyn RenderElsewhere> = here.clone();
        let prompter = prompter(1000).with_request_templates(RequestTemplates::rendered_by(renderer));
        let own = tokens(&prompter, Some("answer {{ messages[0].content }}")).unwrap();
        assert_eq!(own, "answer hello");
        assert_eq!(*here.0.lock().unwrap(), 1);
        assert_ne!(tokens(&prompter, None).unwrap(), own);
        let failed = tokens(&prompter, Some("{{ raise_exception('no users') }}")).unwrap_err();
        assert_eq!(failed.status.as_u16(), 400);
        assert_eq!(failed.message, "'chat_template' failed: no users");
        assert_eq!(failed.param.as_deref(), Some("chat_template"));
    }

    #[test]
    fn number_of_concurrent_renderings_is_limited() {
        let templates = RequestTemplates::rendered_by(Arc::new(Here::default()));
        let prompter = prompter(1000);
        let format = || templates.format("x", prompter.tokenizer());
        let held = [format().unwrap(), format().unwrap()];
        let refused = format().unwrap_err();
        assert_eq!(
            (refused.status.as_u16(), refused.retry_after_seconds),
            (429, Some(1))
        );
        drop(held);
        assert!(format().is_ok());
    }

    #[test]
    fn end_of_the_renderer_states_the_limit() {
        let end = |raw| end_of(ExitStatus::from_raw(raw));
        assert_eq!(end(MEMORY_EXCEEDED << 8), "the template needs too much memory");
        assert_eq!(end(nix::libc::SIGXCPU), "the template needs too much time");
        assert!(end(nix::libc::SIGSEGV).contains("ended its process"));
    }
}
