//! Formats of JSON Schema whose texts can be told by a regular expression: RFC 3339, 4122, 2673 and, simplified, 5321.

/// A day that every year has.
const DATE: &str = "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))";
const TIME: &str =
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";

/// `None` for a format that is not known.
pub(super) fn format_pattern(format: &str) -> Option<String> {
    let pattern = match format {
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{DATE}T{TIME}"),
        "uuid" => "[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}".to_owned(),
        "ipv4" => {
            let number = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
            format!(r"({number}\.){{3}}{number}")
        }
        "email" => {
            let word = "[A-Za-z0-9_+-]+";
            let label = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
            format!(r"{word}(\.{word})*@({label}\.)+[A-Za-z]{{2,63}}")
        }
        _ => return None,
    };
    Some(format!("^({pattern})$"))
}
