//! Facts about chat template and sampling defaults, for clients that show them.

use super::Prompter;

impl Prompter {
    pub(crate) fn has_chat_template(&self) -> bool {
        self.formats.is_some()
    }

    /// Returns the source of the chat template. `None`: the model does not support chats.
    pub(crate) fn chat_template(&self) -> Option<&str> {
        let formats = self.formats.as_ref()?;
        Some(formats.select(None).template.source())
    }

    /// Returns true if the model's template has markers of reasoning.
    pub(crate) fn has_reasoning(&self) -> bool {
        let formats = self.formats.as_ref();
        formats.is_some_and(|formats| formats.select(None).reasoning.is_some())
    }

    /// Returns the sampling defaults, one per line, as in Ollama's model files.
    pub(crate) fn default_parameters(&self) -> String {
        let defaults = &self.defaults;
        let lines = [
            ("temperature", defaults.temperature.to_string()),
            ("top_p", defaults.top_p.to_string()),
            ("top_k", defaults.top_k.to_string()),
            ("min_p", defaults.min_p.to_string()),
            ("repeat_penalty", defaults.repetition_penalty.to_string()),
        ];
        let line = |(name, value): (&str, String)| format!("{name:<30} {value}");
        lines.map(line).join("\n")
    }
}
