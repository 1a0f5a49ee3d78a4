//! Tool call format of DeepSeek: a section of marked calls. V3 and R1 write the type before the
//! name and put the arguments into a code block. V3.1 writes only name and arguments.

use super::{Arguments, Head, is_name};

pub(crate) const SECTION: &str = "<｜tool▁calls▁begin｜>";
pub(crate) const SECTION_END: &str = "<｜tool▁calls▁end｜>";
pub(crate) const CALL: &str = "<｜tool▁call▁begin｜>";
pub(crate) const CALL_END: &str = "<｜tool▁call▁end｜>";
pub(crate) const SEPARATOR: &str = "<｜tool▁sep｜>";
/// Code fence around the arguments of V3.
pub(crate) const FENCE: (&str, &str) = ("```json\n", "\n```");
pub(super) const MARKERS: &[&str] = &[SECTION, SECTION_END, CALL, CALL_END, SEPARATOR];

pub(super) fn head(text: &str) -> Head {
    let Some((kind, call)) = text.split_once(SEPARATOR) else {
        return Head::Unfinished;
    };
    let Some(at) = call.find('{') else {
        return Head::Unfinished;
    };
    let kind = kind.trim().trim_start_matches(CALL).trim();
    let before = call[..at].trim();
    let name = match before.trim_end_matches("```json").trim() {
        "" => kind,
        name => name,
    };
    match is_name(name) {
        true => Head::Begins {
            name: name.to_owned(),
            arguments: Arguments::bare(),
            used: text.len() - call.len() + at,
        },
        false => Head::NoCall,
    }
}
