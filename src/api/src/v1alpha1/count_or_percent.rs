//! Number or percentage: int-or-string of Kubernetes for amounts.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Amount such as `3` or `25%`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountOrPercent {
    Count(u32),
    Percent(u32),
}

/// Pattern of percentages: no sign, no leading zeros, at most four digits.
const PERCENT_PATTERN: &str = "^(0|[1-9][0-9]{0,3})%$";

impl CountOrPercent {
    pub const ZERO: Self = Self::Count(0);

    /// Returns the amount of `whole`, rounded up as Kubernetes rounds maxSurge.
    pub fn of_rounded_up(self, whole: usize) -> usize {
        match self {
            Self::Count(count) => count as usize,
            Self::Percent(percent) => whole.saturating_mul(percent as usize).div_ceil(100),
        }
    }

    /// Returns the amount of `whole`, rounded down as Kubernetes rounds maxUnavailable.
    pub fn of_rounded_down(self, whole: usize) -> usize {
        match self {
            Self::Count(count) => count as usize,
            Self::Percent(percent) => whole.saturating_mul(percent as usize) / 100,
        }
    }
}

impl fmt::Display for CountOrPercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl Serialize for CountOrPercent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(count) => serializer.serialize_u32(*count),
            Self::Percent(_) => serializer.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for CountOrPercent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = CountOrPercent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number such as 1, or a percentage such as \"25%\"")
            }

            fn visit_u64<E: de::Error>(self, count: u64) -> Result<Self::Value, E> {
                u32::try_from(count)
                    .map(CountOrPercent::Count)
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(count), &self))
            }

            fn visit_i64<E: de::Error>(self, count: i64) -> Result<Self::Value, E> {
                u64::try_from(count)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(count), &self))
                    .and_then(|count| self.visit_u64(count))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let digits = text.strip_suffix('%').filter(|digits| {
                    (1..=4).contains(&digits.len())
                        && digits.bytes().all(|byte| byte.is_ascii_digit())
                        && (digits.len() == 1 || !digits.starts_with('0'))
                });
                digits
                    .and_then(|digits| digits.parse().ok())
                    .map(CountOrPercent::Percent)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for CountOrPercent {
    fn schema_name() -> Cow<'static, str> {
        "CountOrPercent".into()
    }

    fn inline_schema() -> bool {
        true
    }

    /// Returns the schema. The pattern applies to texts and the bounds to numbers, as in
    /// Kubernetes' own int-or-string fields.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            // Explicit because kube's default is true. Null then selects the default, as in other
            // fields.
            "nullable": false,
            "pattern": PERCENT_PATTERN,
            // Bounds the estimated cost of rules.
            "maxLength": 5,
            "minimum": 0,
            "maximum": 1_000_000,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(value: Value) -> Option<CountOrPercent> {
        serde_json::from_value(value).ok()
    }

    #[test]
    fn counts_and_percentages_round_trip() {
        for (value, expect) in [
            (json!(0), CountOrPercent::Count(0)),
            (json!(3), CountOrPercent::Count(3)),
            (json!("0%"), CountOrPercent::Percent(0)),
            (json!("25%"), CountOrPercent::Percent(25)),
            (json!("250%"), CountOrPercent::Percent(250)),
        ] {
            assert_eq!(parse(value.clone()), Some(expect), "{value}");
            assert_eq!(serde_json::to_value(expect).unwrap(), value);
        }
        let pattern = regex::Regex::new(PERCENT_PATTERN).unwrap();
        for bad in ["", "%", "3", "-1%", "+1%", "05%", "00%", "1.5%", "25 %", "10000%"] {
            assert_eq!(parse(json!(bad)), None, "{bad}");
            assert!(!pattern.is_match(bad), "{bad}");
        }
        for bad in [json!(-1), json!(1.5), json!(null), json!(true), json!(1u64 << 32)] {
            assert_eq!(parse(bad.clone()), None, "{bad}");
        }
    }

    /// Figures from Kubernetes' documentation and tests of Deployments: 25 % of 10 and of 3.
    #[test]
    fn percentages_round_like_kubernetes() {
        let quarter = CountOrPercent::Percent(25);
        assert_eq!((quarter.of_rounded_up(10), quarter.of_rounded_down(10)), (3, 2));
        assert_eq!((quarter.of_rounded_up(3), quarter.of_rounded_down(3)), (1, 0));
        assert_eq!((quarter.of_rounded_up(0), quarter.of_rounded_down(0)), (0, 0));
        let three = CountOrPercent::Count(3);
        assert_eq!((three.of_rounded_up(10), three.of_rounded_down(10)), (3, 3));
    }
}
