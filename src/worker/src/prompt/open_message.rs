//! Prompts that end inside their last message: what the chat template writes behind it is cut off.

use rooflet_inference_api::openai::json::Json;
use rooflet_inference_api::openai::message::text_of;

/// Stands behind the last message's text, as transformers has it: that text itself may also be part
/// of what the template writes. Its space tells whether the template keeps those at the end.
const END: &str = "ROOFLET_END_OF_OPEN_MESSAGE ";

/// The conversation for the template.
pub(super) fn marked(messages: &[Json]) -> Vec<Json> {
    let mut messages = messages.to_vec();
    let content = messages.last_mut().and_then(|last| last.get_mut("content"));
    if let Some(Json::String(text)) = content {
        text.push_str(END);
    }
    messages
}

/// What the template made of it, up to the last message's end; `None` where it changes that
/// message's text.
pub(super) fn cut(mut text: String, messages: &[Json]) -> Option<String> {
    let said = text_of(messages.last()?)?.trim_start();
    let end = text.rfind(END.trim_end())?;
    let keeps_spaces = text[end..].starts_with(END);
    text.truncate(end);
    if !text.ends_with(said) {
        return None;
    }
    if !keeps_spaces {
        text.truncate(end - said.len() + said.trim_end().len());
    }
    Some(text)
}
