//! Model dimensions in the short form of published shape tables: one JSON object per model, such as
//! `{"L": 32, "d": 4096, "ff": 11008, "nh": 32, "nkv": 32, "hd": 128, "V": 32000, "mats": 3,
//! "tied": 0}`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::dimensions::{Attention, FeedForward, Layer, ModelDimensions};

/// Maximum number of layers. No model has more; a larger number indicates swapped fields.
const MAX_LAYERS: u32 = 4096;

/// Known fields of a shape. [`ShapeFile::unknown_fields`] lists all others, which are ignored.
const FIELDS: [&str; 23] = [
    "L",
    "d",
    "V",
    "ff",
    "mats",
    "tied",
    "nh",
    "nkv",
    "hd",
    "win",
    "glob",
    "ghd",
    "gkv",
    "kv_shared_global",
    "qgate",
    "mla",
    "lin",
    "E",
    "k",
    "eff",
    "sff",
    "dense_first",
    "dff",
];
const LATENT_FIELDS: [&str; 5] = ["kv", "nope", "q", "rope", "v"];
const LINEAR_FIELDS: [&str; 5] = ["every", "kd", "kh", "vd", "vh"];

/// Shapes by model name. Each shape is parsed on use, so an invalid shape does not affect the
/// others.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub struct ShapeFile(BTreeMap<String, Value>);

/// Shape of one model, with the field names of the tables.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    /// Number of layers, width, vocabulary, width of the dense block.
    #[serde(rename = "L")]
    layers: u32,
    d: u32,
    #[serde(rename = "V")]
    vocabulary: u32,
    #[serde(default)]
    ff: u32,
    mats: u32,
    #[serde(default)]
    tied: u32,
    /// Query heads, KV heads, head size.
    nh: u32,
    nkv: u32,
    hd: u32,
    /// Window of the sliding layers. Every `glob`-th layer is global, with `gkv` heads of size
    /// `ghd`.
    win: Option<u32>,
    glob: Option<u32>,
    ghd: Option<u32>,
    gkv: Option<u32>,
    #[serde(default)]
    kv_shared_global: u32,
    #[serde(default)]
    qgate: u32,
    mla: Option<Latent>,
    lin: Option<Linear>,
    /// Number of experts, experts per token, their width, width of the shared experts, number of
    /// leading dense layers and their width.
    #[serde(rename = "E", default)]
    experts: u32,
    #[serde(default)]
    k: u32,
    #[serde(default)]
    eff: u32,
    #[serde(default)]
    sff: u32,
    #[serde(default)]
    dense_first: u32,
    dff: Option<u32>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Latent {
    kv: u32,
    nope: u32,
    /// 0 if queries are not compressed.
    q: u32,
    rope: u32,
    v: u32,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Linear {
    /// Interval of layers with softmax attention; the layers between are linear.
    every: u32,
    kd: u32,
    kh: u32,
    vd: u32,
    vh: u32,
}

/// Reason why a shape is unusable.
#[derive(Debug, thiserror::Error)]
pub enum ShapeError {
    #[error("not a table of model shapes")]
    Invalid {
        #[source]
        err: serde_json::Error,
    },
    #[error("there is no shape `{name}`; known: {known}")]
    Unknown { name: String, known: String },
    #[error("shape `{name}`: {err}")]
    Malformed { name: String, err: serde_json::Error },
    #[error("shape `{name}`: `{field}` is {value}, expected {expected}")]
    OutOfRange {
        name: String,
        field: &'static str,
        value: u32,
        expected: &'static str,
    },
}

impl ShapeFile {
    pub fn parse(text: &str) -> Result<Self, ShapeError> {
        serde_json::from_str(text).map_err(|err| ShapeError::Invalid { err })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub fn dimensions(&self, name: &str) -> Result<ModelDimensions, ShapeError> {
        let shape = self.get(name).ok_or_else(|| ShapeError::Unknown {
            name: name.to_owned(),
            known: self.0.keys().cloned().collect::<Vec<_>>().join(", "),
        })?;
        let shape = Shape::deserialize(plain(shape, &FIELDS)).map_err(|err| ShapeError::Malformed {
            name: name.to_owned(),
            err,
        })?;
        shape.check(name)?;
        Ok(shape.dimensions())
    }

    /// Returns the shape of a name. Case, blanks and dashes are ignored if exactly one shape
    /// matches.
    fn get(&self, name: &str) -> Option<&Value> {
        let squeezed = |name: &str| -> String {
            let kept = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '.');
            kept.map(|c| c.to_ascii_lowercase()).collect()
        };
        let like = || {
            let queried = squeezed(name);
            let mut alike = self.0.iter().filter(|(known, _)| squeezed(known) == queried);
            let (_, shape) = alike.next()?;
            alike.next().is_none().then_some(shape)
        };
        self.0.get(name).or_else(like)
    }

    /// Returns the unknown fields of a shape, such as `mla.extra`.
    pub fn unknown_fields(&self, name: &str) -> Vec<String> {
        let names = |value: &Value| -> Vec<String> {
            value
                .as_object()
                .map_or_else(Vec::new, |map| map.keys().cloned().collect())
        };
        let Some(shape) = self.get(name) else {
            return Vec::new();
        };
        let unknown = |value: &Value, prefix: &str, known: &[&str]| -> Vec<String> {
            let mut names = names(value);
            names.retain(|name| !known.contains(&name.as_str()));
            names.iter().map(|name| format!("{prefix}{name}")).collect()
        };
        let mut found = unknown(shape, "", &FIELDS);
        for (part, known) in [("mla", LATENT_FIELDS), ("lin", LINEAR_FIELDS)] {
            found.extend(unknown(&shape[part], &format!("{part}."), &known));
        }
        found
    }
}

/// Returns the known fields, with counts as integers: `32.0` and `true` become 32 and 1.
fn plain(value: &Value, known: &[&str]) -> Value {
    let Value::Object(map) = value else {
        return count(value);
    };
    let kept = map
        .iter()
        .filter(|(name, value)| known.contains(&name.as_str()) && !value.is_null());
    kept.map(|(name, value)| {
        let value = match name.as_str() {
            "mla" if value.is_object() => plain(value, &LATENT_FIELDS),
            "lin" if value.is_object() => plain(value, &LINEAR_FIELDS),
            _ => count(value),
        };
        (name.clone(), value)
    })
    .collect()
}

fn count(value: &Value) -> Value {
    match value {
        Value::Bool(flag) => Value::from(u32::from(*flag)),
        Value::Number(number) => match number.as_f64() {
            Some(whole) if whole.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&whole) => {
                Value::from(whole as u32)
            }
            Some(_) | None => value.clone(),
        },
        Value::Null | Value::String(_) | Value::Array(_) | Value::Object(_) => value.clone(),
    }
}

impl Shape {
    fn check(&self, name: &str) -> Result<(), ShapeError> {
        let out_of_range = |field: &'static str, value: u32, expected: &'static str| {
            Err(ShapeError::OutOfRange {
                name: name.to_owned(),
                field,
                value,
                expected,
            })
        };
        if !(1..=MAX_LAYERS).contains(&self.layers) {
            return out_of_range("L", self.layers, "1 to 4096 layers");
        }
        let needed = [
            ("d", self.d),
            ("V", self.vocabulary),
            ("nh", self.nh),
            ("nkv", self.nkv),
            ("hd", self.hd),
            ("mats", self.mats),
        ];
        if let Some((field, value)) = needed.into_iter().find(|(_, value)| *value == 0) {
            return out_of_range(field, value, "a number above 0");
        }
        if self.experts > 0 && !(1..=self.experts).contains(&self.k) {
            return out_of_range("k", self.k, "at least 1 and at most the number of experts (`E`)");
        }
        if self.experts > 0 && self.eff == 0 {
            return out_of_range("eff", self.eff, "the width of an expert");
        }
        if self.experts == 0 && self.ff == 0 {
            return out_of_range("ff", self.ff, "the width of the dense block");
        }
        Ok(())
    }

    fn dimensions(&self) -> ModelDimensions {
        ModelDimensions {
            hidden: self.d,
            vocabulary: self.vocabulary,
            tied_embeddings: self.tied != 0,
            per_layer_inputs: None,
            layers: (0..self.layers)
                .map(|index| Layer {
                    attention: self.attention(index),
                    feed_forward: self.feed_forward(index),
                })
                .collect(),
        }
    }

    fn attention(&self, index: u32) -> Attention {
        let last_of = |period: u32| (index + 1).is_multiple_of(period.max(1));
        if let Some(mla) = &self.mla {
            return Attention::Latent {
                heads: self.nh,
                query_rank: Some(mla.q).filter(|rank| *rank > 0),
                kv_rank: mla.kv,
                nope_dim: mla.nope,
                rope_dim: mla.rope,
                value_dim: mla.v,
            };
        }
        if let Some(lin) = &self.lin
            && !last_of(lin.every)
        {
            return Attention::GatedDelta {
                key_heads: lin.kh,
                key_dim: lin.kd,
                value_heads: lin.vh,
                value_dim: lin.vd,
            };
        }
        let global = self.win.is_none() || self.glob.is_some_and(last_of);
        let global_kind = global && self.win.is_some();
        Attention::Grouped {
            heads: self.nh,
            kv_heads: self.gkv.filter(|_| global_kind).unwrap_or(self.nkv),
            head_dim: self.ghd.filter(|_| global_kind).unwrap_or(self.hd),
            window: self.win.filter(|_| !global),
            output_gate: self.qgate != 0,
            keys_are_values: global_kind && self.kv_shared_global != 0,
            shares_cache: false,
        }
    }

    fn feed_forward(&self, index: u32) -> FeedForward {
        if self.experts == 0 || index < self.dense_first {
            return FeedForward::Dense {
                intermediate: self.dff.filter(|_| self.experts > 0).unwrap_or(self.ff),
                matrices: self.mats,
            };
        }
        FeedForward::Experts {
            experts: self.experts,
            active: self.k,
            intermediate: self.eff,
            shared_intermediate: self.sff,
            matrices: self.mats,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_an_invalid_shape_names_the_field_and_other_shapes_stay_usable() {
        let file = ShapeFile::parse(
            r#"{"good": {"L": 2, "V": 100, "d": 64, "ff": 128, "hd": 16, "mats": 3, "nh": 4, "nkv": 2},
                "no width": {"L": 2, "V": 100, "ff": 128, "hd": 16, "mats": 3, "nh": 4, "nkv": 2},
                "typo": {"L": 2, "V": 100, "d": 64, "ff": 128, "hd": 16, "mats": 3, "nh": 4, "nkv": 2, "windw": 5},
                "text": {"L": "two", "V": 100, "d": 64, "ff": 128, "hd": 16, "mats": 3, "nh": 4, "nkv": 2},
                "tower": {"L": 4000000000, "V": 100, "d": 64, "ff": 128, "hd": 16, "mats": 3, "nh": 4, "nkv": 2},
                "flat": {"L": 2, "V": 100, "d": 64, "ff": 128, "hd": 16, "mats": 3, "nh": 4, "nkv": 0},
                "greedy": {"L": 2, "V": 100, "d": 64, "E": 8, "k": 9, "eff": 32, "hd": 16, "mats": 3, "nh": 4, "nkv": 2},
                "list": []}"#,
        )
        .unwrap();
        assert_eq!(file.dimensions("good").unwrap().layers.len(), 2);
        assert_eq!(file.dimensions("typo").unwrap(), file.dimensions("good").unwrap());
        assert_eq!(file.unknown_fields("typo"), ["windw"]);
        assert!(file.unknown_fields("good").is_empty());
        for (name, expected) in [
            ("no width", "missing field `d`"),
            ("text", "invalid type: string \"two\""),
            ("tower", "`L` is 4000000000, expected 1 to 4096 layers"),
            ("flat", "`nkv` is 0, expected a number above 0"),
            ("greedy", "`k` is 9, expected at least 1"),
            ("list", "invalid"),
            ("none", "there is no shape `none`; known: flat, good"),
        ] {
            let err = file.dimensions(name).unwrap_err().to_string();
            assert!(err.contains(expected) && err.contains(name), "{err}");
        }
    }

    /// Number formats of other programs. The test also fails if a field is missing from the lists
    /// of fields, or if they have one too many.
    #[test]
    fn accepts_floats_and_booleans_as_counts() {
        let every = |value: &str| {
            let all = |names: &[&str]| -> String {
                let fields: Vec<String> = names
                    .iter()
                    .filter(|name| !matches!(**name, "mla" | "lin"))
                    .map(|name| format!("\"{name}\": {value}"))
                    .collect();
                fields.join(", ")
            };
            let (shape, latent, linear) = (all(&FIELDS), all(&LATENT_FIELDS), all(&LINEAR_FIELDS));
            let text = format!(
                r#"{{"it": {{{shape}, "mla": {{{latent}}}, "lin": {{{linear}}}}},
                    "plain": {{{shape}, "lin": {{{linear}, "x": 1}}, "mla": null}}}}"#
            );
            let file = ShapeFile::parse(&text).unwrap();
            assert_eq!(file.unknown_fields("plain"), ["lin.x"]);
            (file.dimensions("it").unwrap(), file.dimensions("Plain").unwrap())
        };
        assert_eq!(every("1.0"), every("1"));
        assert_eq!(every("true"), every("1"));
    }
}
