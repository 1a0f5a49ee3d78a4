//! Formats of JSON Schema strings as regular expressions: RFC 3339, 4122, 4291, 4648, 2673 and,
//! simplified, 1123, 3986, 5321 and 7515.

/// Date of the Gregorian calendar.
const DATE: &str = "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))\
    |([0-9]{2}([2468][048]|[13579][26]|0[48])|([02468][048]|[13579][26])00)-02-29)";
const TIME: &str =
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
/// Maximum length limit of a URI, in characters, that the automaton counts. Longer limits are part
/// of the URI's expression, because counting would require too many states.
const COUNTED: u32 = 500;

/// Returns the expression of a format, or `None` for an unknown format. `most`: maximum length of
/// the text in characters.
pub(super) fn format_pattern(format: &str, most: Option<u32>) -> Option<String> {
    let pattern = match format {
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{DATE}T{TIME}"),
        "duration" => duration(),
        "uuid" => uuid("[0-9a-fA-F]", "[0-9a-fA-F]"),
        // Names of pydantic for UUIDs of one version.
        "uuid1" | "uuid3" | "uuid4" | "uuid5" | "uuid6" | "uuid7" | "uuid8" => uuid(&format[4..], "[89abAB]"),
        "ipv4" => {
            let number = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
            format!(r"({number}\.){{3}}{number}")
        }
        "ipv6" => ipv6(),
        // Total length at most 253 characters.
        "hostname" => hostname("{0,28}", "{0,7}"),
        "email" => {
            let word = "[A-Za-z0-9_+-]+";
            let label = "[A-Za-z0-9]+(-+[A-Za-z0-9]+)*";
            format!(r"{word}(\.{word})*@({label}\.)+[A-Za-z]{{2,}}")
        }
        "uri" => uri(most.filter(|most| *most > COUNTED)),
        "byte" | "base64" => base64("[A-Za-z0-9+/]"),
        "base64url" => base64("[A-Za-z0-9_-]"),
        "jwt" => jwt(),
        _ => return None,
    };
    Some(format!("^({pattern})$"))
}

/// Zod's expression for host names. 253 characters in labels of 63 require too many states in an
/// automaton.
const ZOD_HOSTNAME: &str = r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$";

/// Returns true if all texts of a format match the expression, so that the expression is redundant.
pub(super) fn fits(format: &str, pattern: &str) -> bool {
    format == "hostname" && pattern == ZOD_HOSTNAME
}

/// Formats with an expression.
const ENFORCED: &[&str] = &[
    "base64",
    "base64url",
    "byte",
    "date",
    "date-time",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "jwt",
    "time",
    "uri",
    "uuid",
    "uuid1",
    "uuid3",
    "uuid4",
    "uuid5",
    "uuid6",
    "uuid7",
    "uuid8",
];

/// Returns true for formats that restrict no text, as unknown formats in JSON Schema.
pub(super) fn is_annotation(format: &str) -> bool {
    !ENFORCED.contains(&format)
}

/// Pairwise disjoint formats, also with less strict definitions. Host names include dates, and URIs
/// include IPv6 addresses.
const DISJOINT: &[&str] = &[
    "date",
    "time",
    "date-time",
    "duration",
    "uuid",
    "ipv4",
    "ipv6",
    "email",
];

/// Returns true if it is certain that no text has both formats.
pub(super) fn are_disjoint(one: &str, other: &str) -> bool {
    one != other && DISJOINT.contains(&one) && DISJOINT.contains(&other)
}

fn uuid(version: &str, variant: &str) -> String {
    let some = "[0-9a-fA-F]";
    format!("{some}{{8}}-{some}{{4}}-{version}{some}{{3}}-{variant}{some}{{3}}-{some}{{12}}")
}

fn duration() -> String {
    let count = |unit: &str, smaller: &str| match smaller {
        "" => format!("[0-9]{{1,6}}{unit}"),
        _ => format!("[0-9]{{1,6}}{unit}({smaller})?"),
    };
    let (second, day, week) = (count("S", ""), count("D", ""), count("W", ""));
    let minute = count("M", &second);
    let hour = count("H", &minute);
    let month = count("M", &day);
    let year = count("Y", &month);
    let time = format!("T({hour}|{minute}|{second})");
    format!("P(({day}|{month}|{year})({time})?|{time}|{week})")
}

/// Returns the expression of IPv6 addresses without an IPv4 suffix.
fn ipv6() -> String {
    let group = "[0-9a-fA-F]{1,4}";
    let mut branches = vec![
        format!("({group}:){{7}}{group}"),
        format!("({group}:){{1,7}}:"),
        format!(":(:{group}){{1,7}}"),
        "::".to_owned(),
    ];
    // Groups before the gap, and the maximum number after it.
    branches.extend((1..7).map(|before| format!("({group}:){{{before}}}(:{group}){{1,{}}}", 7 - before)));
    branches.join("|")
}

/// Returns the expression of URIs without user information, with at most `most` characters, and
/// never more than the 2083 characters that browsers accept. `most` is above [`COUNTED`].
fn uri(most: Option<u32>) -> String {
    let plain = "-A-Za-z0-9._~!$&'()*+,;=:@";
    let coded = "%[0-9A-Fa-f]{2}";
    let (scheme, host) = match most {
        None => ("[A-Za-z0-9+.-]*", hostname("*", "*")),
        Some(_) => ("[A-Za-z0-9+.-]{0,30}", hostname("{0,28}", "{0,3}")),
    };
    // Rest for path, query and fragment, each character possibly encoded as three.
    let left = most.map(|most| (most.min(2083) - 170) / 3);
    let some = |share: u32| left.map_or("*".to_owned(), |left| format!("{{0,{}}}", left / share));
    let (path, query, fragment) = (some(2), some(3), some(6));
    let path = format!("([{plain}/]|{coded}){path}");
    let more = format!("[{plain}/?]|{coded}");
    format!(
        r"[A-Za-z]{scheme}:(//{host}(:[0-9]{{1,4}})?(/{path})?|[{plain}]{path})(\?({more}){query})?(#({more}){fragment})?"
    )
}

/// Returns the expression of host names with quantifiers for the characters of a label and for
/// further labels.
fn hostname(characters: &str, labels: &str) -> String {
    let label = format!("[A-Za-z0-9]([A-Za-z0-9-]{characters}[A-Za-z0-9])?");
    format!(r"{label}(\.{label}){labels}")
}

fn base64(digit: &str) -> String {
    format!("({digit}{{4}})*({digit}{{2}}==|{digit}{{3}}=)?")
}

/// Returns the expression of a JWT: two objects and an optional signature (RFC 7515, compact) in
/// base64 without padding. No base64 text has a single digit after complete groups of four. An
/// object starts with a brace, followed by a quote, white space or its end.
fn jwt() -> String {
    let digit = "[A-Za-z0-9_-]";
    let rest = format!("{digit}{{2}}({digit}{{4}})*({digit}{{2,3}})?");
    format!(r"e[wy]{rest}\.(e[wy]{rest}|e30)\.({digit}{{4}})*({digit}{{2,3}})?")
}
