//! Formats of JSON Schema whose texts can be told by a regular expression: RFC 3339, 4122, 4291,
//! 4648, 2673 and, simplified, 1123, 3986, 5321 and 7515.

/// A day of the Gregorian calendar.
const DATE: &str = "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))\
    |([0-9]{2}([2468][048]|[13579][26]|0[48])|([02468][048]|[13579][26])00)-02-29)";
const TIME: &str =
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
/// Longer limits are held to by the expression of a URI itself: counting its characters would take
/// too many states.
const COUNTED: u32 = 500;

/// `None` for a format that is not known. `most`: how many characters a text may have.
pub(super) fn format_pattern(format: &str, most: Option<u32>) -> Option<String> {
    let pattern = match format {
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{DATE}T{TIME}"),
        "duration" => duration(),
        "uuid" => uuid("[0-9a-fA-F]", "[0-9a-fA-F]"),
        // As pydantic calls those of one version.
        "uuid1" | "uuid3" | "uuid4" | "uuid5" | "uuid6" | "uuid7" | "uuid8" => uuid(&format[4..], "[89abAB]"),
        "ipv4" => {
            let number = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
            format!(r"({number}\.){{3}}{number}")
        }
        "ipv6" => ipv6(),
        // Never longer than the 253 characters that a name may have.
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

/// What zod says of host names. As an automaton, 253 characters of labels of 63 are too many
/// states.
const ZOD_HOSTNAME: &str = r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$";

/// Whether all texts of a format are known to fit an expression, which then asks for nothing more.
pub(super) fn fits(format: &str, pattern: &str) -> bool {
    format == "hostname" && pattern == ZOD_HOSTNAME
}

/// Formats that tell how a text is used, and not what it is.
pub(super) fn is_any_text(format: &str) -> bool {
    ["binary", "password", "path"].contains(&format)
}

/// Formats of which no text has two, by their own grammars and by looser readings of them. A host's
/// name may be a date, a URI an address of IPv6.
const APART: &[&str] = &[
    "date",
    "time",
    "date-time",
    "duration",
    "uuid",
    "ipv4",
    "ipv6",
    "email",
];

/// Whether no text has both formats; where that is not known, no.
pub(super) fn are_apart(one: &str, other: &str) -> bool {
    one != other && APART.contains(&one) && APART.contains(&other)
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

/// Without an IPv4 address at the end.
fn ipv6() -> String {
    let group = "[0-9a-fA-F]{1,4}";
    let mut ways = vec![
        format!("({group}:){{7}}{group}"),
        format!("({group}:){{1,7}}:"),
        format!(":(:{group}){{1,7}}"),
        "::".to_owned(),
    ];
    // As many groups before the gap, and at most so many behind it.
    ways.extend((1..7).map(|before| format!("({group}:){{{before}}}(:{group}){{1,{}}}", 7 - before)));
    ways.join("|")
}

/// Without a user's name. Of no more than so many characters, which are more than a few, nor than
/// the 2083 that browsers take.
fn uri(most: Option<u32>) -> String {
    let plain = "-A-Za-z0-9._~!$&'()*+,;=:@";
    let coded = "%[0-9A-Fa-f]{2}";
    let (scheme, host) = match most {
        None => ("[A-Za-z0-9+.-]*", hostname("*", "*")),
        Some(_) => ("[A-Za-z0-9+.-]{0,30}", hostname("{0,28}", "{0,3}")),
    };
    // What scheme, host, port and signs leave, of which each may be three characters.
    let left = most.map(|most| (most.min(2083) - 170) / 3);
    let some = |share: u32| left.map_or("*".to_owned(), |left| format!("{{0,{}}}", left / share));
    let (path, query, fragment) = (some(2), some(3), some(6));
    let path = format!("([{plain}/]|{coded}){path}");
    let more = format!("[{plain}/?]|{coded}");
    format!(
        r"[A-Za-z]{scheme}:(//{host}(:[0-9]{{1,4}})?(/{path})?|[{plain}]{path})(\?({more}){query})?(#({more}){fragment})?"
    )
}

/// With so many characters in a label, and so many labels behind the first.
fn hostname(characters: &str, labels: &str) -> String {
    let label = format!("[A-Za-z0-9]([A-Za-z0-9-]{characters}[A-Za-z0-9])?");
    format!(r"{label}(\.{label}){labels}")
}

fn base64(digit: &str) -> String {
    format!("({digit}{{4}})*({digit}{{2}}==|{digit}{{3}}=)?")
}

/// Two objects and a signature, which may be missing (RFC 7515, compact), in base64 without
/// padding: no text of it has a single digit beyond whole groups of four. Objects begin with a
/// brace, and behind it a quote, white space, or its end.
fn jwt() -> String {
    let digit = "[A-Za-z0-9_-]";
    let rest = format!("{digit}{{2}}({digit}{{4}})*({digit}{{2,3}})?");
    format!(r"e[wy]{rest}\.(e[wy]{rest}|e30)\.({digit}{{4}})*({digit}{{2,3}})?")
}
