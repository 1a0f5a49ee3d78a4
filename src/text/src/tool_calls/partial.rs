//! Function of a call that was cut off before its arguments.

use rooflet_inference_api::openai::tools::Function;

/// Returns the function whose complete name occurs in an incomplete call. If there are several, the
/// last one counts, because the format may precede it (`functions.NAME`).
pub(crate) fn named_function<'f>(text: &str, functions: &'f [Function]) -> Option<&'f str> {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let ends = |name: &str| {
        let whole = |at: &usize| {
            let (before, after) = (&text[..*at], &text[at + name.len()..]);
            // The key `name` of the JSON object is not a function's name.
            let is_key = before.trim_end().ends_with("{\"");
            // The name must be terminated, otherwise a longer name is possible.
            !is_key && !before.ends_with(is_part) && after.starts_with(|c| !is_part(c) && c != '.')
        };
        let places = text.match_indices(name).map(|(at, _)| at);
        places.filter(whole).map(|at| at + name.len()).max()
    };
    let named = functions.iter().map(|function| function.name.as_str());
    let found = named
        .filter(|name| !name.is_empty())
        .filter_map(|name| Some((ends(name)?, name)));
    found
        .max_by_key(|(end, name)| (*end, name.len()))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requires_complete_name() {
        let function = |name: &str| Function {
            strict: false,
            name: name.to_owned(),
            parameters: None,
        };
        let functions = ["weather", "get_weather", "get_weather_now", "name", "f.g"].map(function);
        for (text, expect) in [
            ("", None),
            ("<tool_call>", None),
            ("<tool_call>{\"name", None),
            ("<tool_call>{\"name\": \"", None),
            ("<tool_call>{\"name\": \"get_weather", None),
            ("<tool_call>\n{ \"name\": \"get_weather\"", Some("get_weather")),
            (
                "<tool_call>{\"name\": \"get_weather_now\", \"argu",
                Some("get_weather_now"),
            ),
            ("{\"name\": \"name\", \"parameters\": ", Some("name")),
            ("[TOOL_CALLS]get_weather[ARGS]", Some("get_weather")),
            (
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```js",
                Some("weather"),
            ),
            (
                "<|tool_call_begin|>functions.get_weather:0<|tool",
                Some("get_weather"),
            ),
            ("<|channel|>commentary to=functions.f.g ", Some("f.g")),
            ("<tool_call>other\n", None),
        ] {
            assert_eq!(named_function(text, &functions), expect, "{text}");
        }
    }
}
