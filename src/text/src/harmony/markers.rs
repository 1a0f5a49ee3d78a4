//! Markers of the harmony format.

pub(crate) const START: &str = "<|start|>";
pub(crate) const CHANNEL: &str = "<|channel|>";
pub(crate) const CONSTRAIN: &str = "<|constrain|>";
pub(crate) const MESSAGE: &str = "<|message|>";
pub(crate) const END: &str = "<|end|>";
pub(crate) const CALL: &str = "<|call|>";
pub(crate) const RETURN: &str = "<|return|>";
/// `<|call|>` and `<|return|>` end the text and are not seen where the model's files say so.
pub(crate) const MARKERS: &[&str] = &[START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN];
