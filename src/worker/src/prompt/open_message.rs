//! Prompts that end inside their last message (`continue_final_message`): removal of the text that
//! the chat template writes after that message.

use rooflet_inference_api::openai::json::Json;
use rooflet_inference_api::openai::message::text_of;

/// Marker at the end of the last message, as in transformers. A search for the message's text would
/// be ambiguous, because the template may write the same text elsewhere. The trailing space shows
/// whether the template strips trailing spaces.
const END_MARKER: &str = "ROOFLET_END_OF_OPEN_MESSAGE ";

/// Returns the conversation with the marker at the end of its last message.
pub(super) fn with_marker(messages: &[Json]) -> Vec<Json> {
    let mut messages = messages.to_vec();
    let content = messages.last_mut().and_then(|last| last.get_mut("content"));
    if let Some(Json::String(text)) = content {
        text.push_str(END_MARKER);
    }
    messages
}

/// Returns the rendered text up to the end of the last message. Returns `None` if the template
/// changes the text of that message.
pub(super) fn cut_at_marker(mut text: String, messages: &[Json]) -> Option<String> {
    let last_text = text_of(messages.last()?)?.trim_start();
    let end = text.rfind(END_MARKER.trim_end())?;
    let keeps_spaces = text[end..].starts_with(END_MARKER);
    text.truncate(end);
    if !text.ends_with(last_text) {
        return None;
    }
    if !keeps_spaces {
        text.truncate(end - last_text.len() + last_text.trim_end().len());
    }
    Some(text)
}
