//! Parameter `options`, and other parameters that determine the generation of an answer.

use serde_json::{Value, json};

use super::ignored::IgnoredFields;
use crate::openai::ApiError;
use crate::openai::json::{Json, Members};
use crate::openai::request::fields::Fields;
use crate::openai::request::stopping::parse_strings;
use crate::openai::request::{Options, logprobs, template};
use crate::openai::response_format::{ContentFormat, ResponseFormat};

/// Supported options: Ollama's name, and the name in [`Options`].
const SAMPLING: &[(&str, &str)] = &[
    ("temperature", "temperature"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("seed", "seed"),
    ("repeat_penalty", "repetition_penalty"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
    ("num_predict", "max_tokens"),
];

const STOP: &str = "options.stop";
const MAX_STOP_STRINGS: usize = 64;

/// Parses the parameters of `/api/chat` and `/api/generate` that determine how an answer is
/// generated.
pub(super) fn parse(fields: &Fields, ignored: &mut IgnoredFields) -> Result<Options, ApiError> {
    let mut own = Fields::default();
    for name in ["priority", "cache_salt"] {
        if let Some(value) = fields.get(name) {
            own.insert(name.to_owned(), value.clone());
        }
    }
    let mut window = None;
    let listed = fields.read("options", "an object", Value::as_object)?;
    for (name, value) in listed.into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        let value = as_integer(value);
        let openai = SAMPLING.iter().find(|(theirs, _)| theirs == name);
        match (name.as_str(), openai) {
            // llama.cpp's value for a random seed.
            ("seed", _) if value == json!(-1) => {}
            // Without a limit, or up to the end of the context.
            ("num_predict", _) if [json!(0), json!(-1), json!(-2)].contains(&value) => {}
            (_, Some((_, openai))) => own.insert((*openai).to_owned(), value),
            ("stop", None) => own.insert(STOP.to_owned(), value),
            ("repeat_last_n", None) => {
                window = value.as_i64();
                if !matches!(window, Some(0 | -1)) {
                    ignored.add("options.repeat_last_n".to_owned());
                }
            }
            (name, None) if !is_off(name, &value) => ignored.add(format!("options.{name}")),
            (_, None) => {}
        }
    }
    let mut options = Options::parse(&own, 1).map_err(in_options)?;
    options.stopping.strings = parse_strings(&own, STOP, MAX_STOP_STRINGS)?;
    if window == Some(0) {
        // Penalties apply to no tokens.
        let sampling = &mut options.sampling;
        sampling.repetition_penalty = Some(1.0);
        sampling.presence_penalty = Some(0.0);
        sampling.frequency_penalty = Some(0.0);
    }
    options.stream = fields.boolean("stream")?.unwrap_or(true);
    options.logprobs = logprobs::of_chat(fields)?;
    Ok(options)
}

/// Adds the names of all options, which have no effect on embeddings.
pub(super) fn ignore_all(fields: &Fields, ignored: &mut IgnoredFields) -> Result<(), ApiError> {
    let listed = fields.read("options", "an object", Value::as_object)?;
    for (name, _) in listed.into_iter().flatten().filter(|(_, value)| !value.is_null()) {
        ignored.add(format!("options.{name}"));
    }
    Ok(())
}

/// Converts a whole number that is written as a fraction, such as `40.0`.
fn as_integer(value: &Value) -> Value {
    match value.as_f64() {
        Some(number) if value.is_f64() && number.fract() == 0.0 && number.abs() < 1e15 => {
            json!(number as i64)
        }
        _ => value.clone(),
    }
}

/// Returns true if the value disables an option that is not supported.
fn is_off(name: &str, value: &Value) -> bool {
    match name {
        "mirostat" => value.as_f64() == Some(0.0),
        "typical_p" | "tfs_z" => value.as_f64() == Some(1.0),
        _ => false,
    }
}

/// Returns the error with the name of the option in the request.
fn in_options(mut err: ApiError) -> ApiError {
    let found = SAMPLING
        .iter()
        .find(|(_, openai)| err.param.as_deref() == Some(*openai));
    if let Some((theirs, openai)) = found {
        let param = format!("options.{theirs}");
        err.message = err.message.replace(&format!("'{openai}'"), &format!("'{param}'"));
        err.param = Some(param);
    }
    err
}

/// Parses `format`: a name or a JSON Schema.
pub(super) fn parse_format(format: Option<&Json>) -> Result<Option<ResponseFormat>, ApiError> {
    let content = match format {
        None | Some(Json::Null) => return Ok(None),
        Some(Json::String(name)) if name.is_empty() => return Ok(None),
        Some(Json::String(name)) if name == "json" => ContentFormat::Object,
        Some(schema @ Json::Object(_)) => ContentFormat::Schema(schema.clone()),
        Some(Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Array(_)) => {
            return Err(ApiError::invalid_value(
                "format",
                "'format' must be 'json' or a JSON Schema object.",
            ));
        }
    };
    Ok(Some(ResponseFormat {
        content,
        param: "format".to_owned(),
    }))
}

/// Parses `think` into variables of the chat template.
pub(super) fn parse_think(fields: &Fields) -> Result<Members, ApiError> {
    let effort = match fields.get("think") {
        None => return Ok(Members::default()),
        Some(Value::Bool(thinks)) => return variables(*thinks, None),
        Some(Value::String(effort)) => effort.as_str(),
        Some(Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_)) => "",
    };
    match effort {
        "low" | "medium" | "high" => variables(true, Some(effort)),
        "max" => variables(true, Some("xhigh")),
        _ => Err(ApiError::invalid_value(
            "think",
            "'think' must be true, false, 'low', 'medium', 'high' or 'max'.",
        )),
    }
}

fn variables(thinks: bool, effort: Option<&str>) -> Result<Members, ApiError> {
    let mut words = Fields::default();
    words.insert("enable_thinking".to_owned(), json!(thinks));
    if let Some(effort) = effort {
        words.insert("reasoning_effort".to_owned(), json!(effort));
    }
    template::parse_variables(None, &words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(body: &Value) -> Fields {
        Fields::split(body.to_string().as_bytes(), &[]).unwrap().1
    }

    fn options(options: Value) -> (Options, IgnoredFields) {
        let mut ignored = IgnoredFields::default();
        let parsed = parse(&fields(&json!({"options": options})), &mut ignored).unwrap();
        (parsed, ignored)
    }

    #[test]
    fn converts_options_to_sampling_parameters() {
        let (parsed, ignored) = options(json!({
            "temperature": 0.5, "top_k": 40.0, "top_p": 0.9, "min_p": 0.05, "seed": 7, "repeat_penalty": 1.1,
            "presence_penalty": 1, "frequency_penalty": 0.5, "num_predict": 9, "stop": ["a", "b"], "mirostat": 0,
        }));
        let sampling = &parsed.sampling;
        assert_eq!(
            (sampling.temperature, sampling.top_k, sampling.seed),
            (Some(0.5), Some(40), Some(7))
        );
        assert_eq!(
            (sampling.repetition_penalty, sampling.presence_penalty),
            (Some(1.1), Some(1.0))
        );
        assert_eq!(parsed.max_tokens, Some(9));
        assert_eq!(parsed.stopping.strings, ["a", "b"]);
        assert!(parsed.stream, "streaming is the default");
        assert_eq!(ignored, IgnoredFields::default());
    }

    #[test]
    fn special_values_remove_limits() {
        for limit in [-1, -2, 0] {
            let (parsed, _) = options(json!({"num_predict": limit, "seed": -1, "repeat_penalty": 1.5}));
            assert_eq!((parsed.max_tokens, parsed.sampling.seed), (None, None));
            assert_eq!(parsed.sampling.repetition_penalty, Some(1.5));
        }
        let (parsed, _) = options(json!({"repeat_last_n": 0, "repeat_penalty": 1.5}));
        assert_eq!(parsed.sampling.repetition_penalty, Some(1.0));
    }

    #[test]
    fn names_ignored_options() {
        let (_, ignored) = options(json!({
            "num_ctx": 4096, "num_gpu": 99, "mirostat": 2, "repeat_last_n": 64, "low_vram": null,
        }));
        let mut expected = IgnoredFields::default();
        for name in ["mirostat", "num_ctx", "num_gpu", "repeat_last_n"] {
            expected.add(format!("options.{name}"));
        }
        assert_eq!(ignored, expected);
    }

    #[test]
    fn errors_name_the_option() {
        for (body, param) in [
            (json!({"options": []}), "options"),
            (json!({"options": {"temperature": -1}}), "options.temperature"),
            (
                json!({"options": {"repeat_penalty": 0}}),
                "options.repeat_penalty",
            ),
            (json!({"options": {"num_predict": -3}}), "options.num_predict"),
            (json!({"options": {"num_predict": 1.5}}), "options.num_predict"),
            (json!({"options": {"stop": [""]}}), "options.stop"),
            (json!({"stream": 1}), "stream"),
            (json!({"top_logprobs": 2}), "top_logprobs"),
        ] {
            let err = parse(&fields(&body), &mut IgnoredFields::default()).unwrap_err();
            assert_eq!(err.param.as_deref(), Some(param), "{body}");
            assert!(err.message.contains(&format!("'{param}'")), "{}", err.message);
        }
        for think in [json!(1), json!("much")] {
            assert!(parse_think(&fields(&json!({"think": think}))).is_err());
        }
    }

    #[test]
    fn think_sets_template_variables() {
        let variable = |think: Value, name: &str| {
            let variables = parse_think(&fields(&json!({"think": think}))).unwrap();
            variables.get(name).cloned()
        };
        assert_eq!(variable(json!(false), "enable_thinking"), Some(Json::Bool(false)));
        assert_eq!(variable(json!("low"), "enable_thinking"), Some(Json::Bool(true)));
        assert_eq!(variable(json!("low"), "reasoning_effort"), Some("low".into()));
        assert_eq!(variable(json!(null), "enable_thinking"), None);
    }
}
