//! Which function a call is of that was cut off before its arguments.

use rooflet_inference_api::openai::tools::Function;

/// The function that is named, whole, in a text that is nothing but the beginning of a call; of
/// several the last, as what stands before it says that it is one (`functions.NAME`).
pub(crate) fn begun<'f>(text: &str, functions: &'f [Function]) -> Option<&'f str> {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let ends = |name: &str| {
        let whole = |at: &usize| {
            let (before, behind) = (&text[..*at], &text[at + name.len()..]);
            // Of JSON, the first member is called `name` itself.
            let is_key = before.trim_end().ends_with("{\"");
            // What ends the name has to be there: else another one may be longer.
            !is_key && !before.ends_with(is_part) && behind.starts_with(|c| !is_part(c) && c != '.')
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
    fn a_name_counts_where_it_is_whole() {
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
            assert_eq!(begun(text, &functions), expect, "{text}");
        }
    }
}
