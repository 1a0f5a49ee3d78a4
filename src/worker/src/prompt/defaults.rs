//! Default sampling parameters of a model.

use serde_json::Value;

/// Sampling parameters for requests that omit them, from the fields of `generation_config.json`
/// that vLLM also reads. Values out of range are ignored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SamplingDefaults {
    pub(super) temperature: f32,
    pub(super) top_p: f32,
    pub(super) top_k: u32,
    pub(super) min_p: f32,
    pub(super) repetition_penalty: f32,
}

impl SamplingDefaults {
    pub(super) fn new(generation_config: Option<&Value>) -> Self {
        let field = |name: &str| generation_config.and_then(|config| config.get(name));
        let number = |name: &str| field(name).and_then(Value::as_f64).map(|number| number as f32);
        let greedy = field("do_sample").is_some_and(|sample| sample == false);
        Self {
            temperature: if greedy {
                0.0
            } else {
                number("temperature").unwrap_or(1.0)
            },
            top_p: number("top_p").unwrap_or(1.0),
            top_k: field("top_k")
                .and_then(Value::as_u64)
                .and_then(|k| u32::try_from(k).ok())
                .unwrap_or(0),
            min_p: number("min_p")
                .filter(|share| (0.0..=1.0).contains(share))
                .unwrap_or(0.0),
            repetition_penalty: number("repetition_penalty")
                .filter(|penalty| *penalty > 0.0 && penalty.is_finite())
                .unwrap_or(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_sampling_defaults_from_generation_config() {
        let defaults = |config: Value| SamplingDefaults::new(Some(&config));
        let defaults_with = |temperature, top_p, top_k| SamplingDefaults {
            temperature,
            top_p,
            top_k,
            min_p: 0.0,
            repetition_penalty: 1.0,
        };
        assert_eq!(SamplingDefaults::new(None), defaults_with(1.0, 1.0, 0));
        assert_eq!(
            defaults(json!({"temperature": 0.6, "top_p": 0.95, "top_k": 20})),
            defaults_with(0.6, 0.95, 20)
        );
        assert_eq!(
            defaults(json!({"do_sample": false, "temperature": 0.6})),
            defaults_with(0.0, 1.0, 0)
        );
        assert_eq!(
            defaults(json!({"min_p": 0.05, "repetition_penalty": 1.1})),
            SamplingDefaults {
                min_p: 0.05,
                repetition_penalty: 1.1,
                ..defaults_with(1.0, 1.0, 0)
            }
        );
        assert_eq!(
            defaults(json!({"min_p": 2, "repetition_penalty": 0})),
            defaults_with(1.0, 1.0, 0)
        );
    }
}
