//! Comparison of a model's logits with those of a reference program.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer};

use rooflet_mlx::mlx_rs::Array;
use rooflet_mlx::mlx_rs::error::{Exception, Result};

use crate::Decoder;

/// Largest difference from logits of a program that adds the same values in another order, in
/// float32 on a CPU.
pub const REFERENCE_TOLERANCE: f32 = 1e-4;

/// Results of a reference program for a model and a prompt.
#[derive(Debug, Clone, Deserialize)]
pub struct Case {
    /// Path of the model directory, relative to the repository.
    pub model: String,
    pub prompt: Vec<u32>,
    /// Logits after the prompt.
    #[serde(deserialize_with = "floats")]
    pub logits: Vec<f32>,
    /// The most likely tokens after the prompt.
    pub greedy: Vec<u32>,
    /// Logits from which the last of these tokens was selected. Empty if unknown.
    #[serde(default, deserialize_with = "floats")]
    pub last: Vec<f32>,
}

/// File with results of a reference program.
#[derive(Debug, Deserialize)]
struct Cases {
    cases: Vec<Case>,
}

impl Case {
    /// Parses `logits.json` or `reference.json`.
    pub fn parse_all(json: &[u8]) -> serde_json::Result<Vec<Self>> {
        serde_json::from_slice(json).map(|Cases { cases }| cases)
    }
}

/// Decodes little-endian float32 in base64.
fn floats<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<f32>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bytes = STANDARD.decode(text).map_err(serde::de::Error::custom)?;
    let floats = bytes
        .chunks_exact(4)
        .map(|four| four.try_into().map(f32::from_le_bytes));
    floats
        .collect::<std::result::Result<_, _>>()
        .map_err(serde::de::Error::custom)
}

/// Results of a model for the prompt and the greedy tokens of a case.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// Logits after the prompt.
    pub logits: Vec<f32>,
    /// Logits from which the last token would be selected.
    pub last: Vec<f32>,
    /// Largest logit minus the logit of the case's token, at the worst token. 0 if the model
    /// selects all tokens of the case. NaN if a logit is not a number.
    pub shortfall: f32,
}

impl Replay {
    /// Runs the prompt in one pass, then the greedy tokens one by one.
    pub fn run(model: &Decoder, case: &Case) -> Result<Self> {
        let mut cache = model.new_cache();
        let mut forward = |ids: &[u32]| -> Result<Vec<f32>> {
            let count = i32::try_from(ids.len()).map_err(|err| Exception::custom(err.to_string()))?;
            let logits = model.forward(&Array::from_slice(ids, &[1, count]), &mut cache)?;
            let logits = logits.to_vec_exact::<f32>();
            logits.map_err(|err| Exception::custom(err.to_string()))
        };
        let logits = forward(&case.prompt)?;
        let mut last = logits.clone();
        let mut shortfall = 0.0;
        for (step, token) in case.greedy.iter().enumerate() {
            if step > 0 {
                last = forward(&case.greedy[step - 1..step])?;
            }
            let selected = usize::try_from(*token).ok().and_then(|token| last.get(token));
            let selected = selected.copied().unwrap_or(f32::NAN);
            shortfall = larger(shortfall, largest(last.iter().map(|logit| logit - selected)));
        }
        Ok(Self {
            logits,
            last,
            shortfall,
        })
    }

    /// Returns the smallest difference of single logits that explains the results: the largest
    /// difference of a stored logit, or half the shortfall of a token. NaN if a logit is not a
    /// number.
    pub fn difference(&self, case: &Case) -> f32 {
        let of_positions = largest(self.differences_by_position(case).into_iter());
        larger(self.shortfall / 2.0, of_positions)
    }

    /// Returns the largest difference from the logits of another run of the same case.
    pub fn distance(&self, other: &Self) -> f32 {
        let logits = apart(&self.logits, &other.logits);
        larger(logits, apart(&self.last, &other.last))
    }

    /// Returns the largest difference of a logit at each position with stored logits. NaN if a
    /// logit is not a number.
    pub fn differences_by_position(&self, case: &Case) -> Vec<f32> {
        let mut differences = vec![apart(&self.logits, &case.logits)];
        if !case.last.is_empty() {
            differences.push(apart(&self.last, &case.last));
        }
        differences
    }
}

/// Returns the largest difference of two logits of the same token. NaN if a logit is missing or not
/// a number.
fn apart(ours: &[f32], theirs: &[f32]) -> f32 {
    match ours.len() == theirs.len() {
        true => largest(
            ours.iter()
                .zip(theirs)
                .map(|(ours, theirs)| (ours - theirs).abs()),
        ),
        false => f32::NAN,
    }
}

/// Returns the largest of the values and 0. NaN if one of them is NaN.
fn largest(values: impl Iterator<Item = f32>) -> f32 {
    values.fold(0.0, larger)
}

/// Returns the larger value. NaN if one of them is NaN.
pub fn larger(a: f32, b: f32) -> f32 {
    match a.is_nan() || b.is_nan() {
        true => f32::NAN,
        false => a.max(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case() -> Case {
        Case {
            model: String::new(),
            prompt: vec![0],
            logits: vec![0.5, 1.0],
            greedy: vec![1],
            last: Vec::new(),
        }
    }

    fn replay(logits: &[f32], shortfall: f32) -> Replay {
        Replay {
            logits: logits.to_vec(),
            last: logits.to_vec(),
            shortfall,
        }
    }

    #[test]
    fn difference_is_the_worst_of_logits_and_tokens() {
        let case = case();
        assert_eq!(replay(&[0.5, 1.0], 0.0).difference(&case), 0.0);
        assert_eq!(replay(&[0.25, 1.0], 0.0).difference(&case), 0.25);
        assert_eq!(replay(&[0.5, 1.0], 3.0).difference(&case), 1.5);
        let with_last = Case {
            last: vec![0.5, 3.0],
            ..case
        };
        assert_eq!(replay(&[0.5, 1.0], 0.0).difference(&with_last), 2.0);
    }

    #[test]
    fn missing_logits_and_nan_are_no_match() {
        for wrong in [
            replay(&[0.5], 0.0),
            replay(&[0.5, f32::NAN], 0.0),
            replay(&[0.5, 1.0], f32::NAN),
        ] {
            assert!(wrong.difference(&case()).is_nan(), "{wrong:?}");
        }
    }
}
