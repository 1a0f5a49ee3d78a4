//! Functions under test, with the properties that must hold for any input.

mod apply;
mod cel;
mod patch;
mod protobuf;
mod schema;
mod selector;

use serde_json::Value;

use crate::source::Source;
use rooflet_base::quantity;

/// Function under test.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// Runs the function with input of the source. Returns the violated property.
    pub(crate) check: fn(&mut Source) -> Result<(), String>,
}

pub(crate) const TARGETS: &[Target] = &[
    Target {
        name: "json-patch",
        check: patch::json,
    },
    Target {
        name: "merge-patch",
        check: patch::merge,
    },
    Target {
        name: "strategic-merge-patch",
        check: patch::strategic,
    },
    Target {
        name: "apply",
        check: apply::check,
    },
    Target {
        name: "selector",
        check: selector::check,
    },
    Target {
        name: "protobuf",
        check: protobuf::check,
    },
    Target {
        name: "quantity",
        check: quantities,
    },
    Target {
        name: "cel",
        check: cel::check,
    },
    Target {
        name: "schema",
        check: schema::check,
    },
];

fn require(holds: bool, property: &str) -> Result<(), String> {
    holds
        .then_some(())
        .ok_or_else(|| format!("{property} does not hold"))
}

fn require_equal(found: &Value, expected: &Value, property: &str) -> Result<(), String> {
    match found == expected {
        true => Ok(()),
        false => Err(format!("{property} does not hold: {found} is not {expected}")),
    }
}

fn quantities(source: &mut Source) -> Result<(), String> {
    let parts = [
        "0",
        "1",
        "5",
        "999",
        "1024",
        ".",
        "-",
        "+",
        "e",
        "E",
        "Ki",
        "Mi",
        "Gi",
        "Ti",
        "Pi",
        "Ei",
        "m",
        "u",
        "n",
        "k",
        "M",
        "G",
        "T",
        "P",
        "s",
        "h",
        "ms",
        "18446744073709551615",
        "inf",
        "NaN",
        " ",
    ];
    let text: String = (0..source.below(6)).map(|_| source.word(&parts)).collect();
    source.show("text", format!("{text:?}"));
    // The result of a text that is not a duration is an absent value.
    let _ = quantity::parse_duration(&text);
    let Ok(bytes) = quantity::parse_bytes(&text) else {
        return Ok(());
    };
    let shown = quantity::format_bytes(bytes);
    // A number above 2^53 has no exact value as a quantity.
    let parsed = quantity::parse_bytes(&shown).map_err(|err| format!("{shown:?} is not parsed: {err}"));
    require(
        bytes.0 > 1 << 53 || parsed? == bytes,
        "the canonical form has the same value",
    )
}
